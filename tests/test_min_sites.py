"""A least number of sites per round: below it the model stays as it was, and the ledger says why.

It holds wherever a policy does. Federations have 2 unless they are told otherwise, simulations
none.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

import feddraw
import tiny
from feddraw.aggregation import NoUpdateUsed
from feddraw.analysis.explain_weights import explain_run_weights
from feddraw.analysis.weights_in_words import weights_in_sentences
from feddraw.errors import RunFailed, UserError
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import run
from feddraw.flower import FedDRAW, MethodStrategy
from feddraw.flower.in_process_grid import InProcessGrid
from feddraw.flower.settings import read_run_config
from feddraw.methods.fedadam import fedadam
from feddraw.methods.fedavg import fedavg
from feddraw.results.ledger_table import read_ledger
from feddraw.results.recorded_run import read_run
from feddraw.secure.rounds.in_process import Secure
from feddraw.server.collectors import Streaming, Together
from feddraw.server.policy import Policy
from feddraw.server.round import Collector, Round
from small import small
from test_flower_interface import NODES, arrays, clients

ALONE = "unused: only 1 client could count, and policy.min_sites asks for 2"


def collectors(policy: Policy) -> dict[str, Collector]:
    return {
        "together": Together(policy=policy),
        "streaming": Streaming(sizes=tiny.SIZES, policy=policy),
        "secure": Secure(clients=tiny.NAMES, sizes=tiny.SIZES, policy=policy),
    }


@pytest.mark.parametrize("way", ["together", "streaming", "secure"])
def test_below_it_nothing_moves_and_each_site_that_answered_has_the_reason(way: str) -> None:
    """FedAdam has a state, which must not move either."""
    trained = tiny.trained("fedadam")
    sent, state = trained.before(1)
    round = Round(1, 4, sent, trained.method, state, tiny.NAMES, range(4))
    updates = [tiny.copied(update) for update in trained.updates[1][:3]]
    kept = collectors(Policy(min_sites=4))[way](round, iter(updates))
    assert tiny.same(kept.next_model, sent)
    assert kept.state is state
    assert not kept.weights
    assert np.isnan(kept.loss)
    reason = "unused: only 3 clients could count, and policy.min_sites asks for 4"
    assert [entry.status for entry in kept.ledger] == [reason] * 3 + ["missing"]
    updates = [tiny.copied(update) for update in trained.updates[1][:3]]
    moved = collectors(Policy(min_sites=3))[way](round, iter(updates))
    assert len(moved.weights) == 3
    assert not tiny.same(moved.next_model, sent)


def test_a_refused_update_does_not_make_up_the_number() -> None:
    trained = tiny.trained("fedavg")
    sent, state = trained.before(0)
    good, bad = (tiny.copied(update) for update in trained.updates[0][:2])
    result = tiny.together(
        trained.method, sent, state, [good, replace(bad, size=0)], policy=Policy(min_sites=2)
    )
    assert result.ledger[0].status == ALONE
    assert result.ledger[1].status.startswith("refused: size 0")


def federation(answering: dict[int, tuple[int, ...]], **options: Any) -> MethodStrategy:
    """By server round, the nodes whose answers arrive; all in rounds that are not named."""

    def lose(replies: list[Message]) -> list[Message]:
        round = int(replies[0].metadata.group_id)
        return [
            reply
            for number, reply in enumerate(replies)
            if number in answering.get(round, (0, 1, 2))
        ]

    strategy = MethodStrategy(fedadam(), fraction_evaluate=0.0, **options)
    grid = InProcessGrid(clients(), NODES, arrive=lose)
    strategy.start(grid, arrays(), 3)
    return strategy


def statuses(strategy: MethodStrategy, round: int) -> dict[str, str]:
    return {entry.client: entry.status for entry in strategy.history[round].ledger}


def test_in_a_flower_federation_one_site_alone_does_not_become_the_model(tmp_path: Path) -> None:
    strategy = federation({2: (1,)}, folder=tmp_path / "run")
    assert statuses(strategy, 1) == {
        "node 1001": "missing",
        "node 1002": ALONE,
        "node 1003": "missing",
    }
    assert [len(done.weights) for done in strategy.history] == [3, 0, 3]
    assert strategy.history[1].reported["clients-unused"] == 1
    said = " ".join(weights_in_sentences(explain_run_weights(read_run(tmp_path / "run"))))
    assert "In round 1 no client counted: the model stayed as it was." in said
    assert (
        "Unused (only 1 client could count, and policy.min_sites asks for 2): node 1002 in round"
        " 1." in said
    )
    alone = federation({2: (1,)}, policy={"min_sites": 1})
    assert alone.history[1].weights == {"node 1002": 1.0}


def test_a_second_such_round_ends_the_run_with_the_reason() -> None:
    with pytest.raises(RunFailed, match=r"in rounds 1 and 2 \(2 missing; 1 unused: only 1 client"):
        federation({2: (1,), 3: (1,)})


def test_a_sample_has_at_least_so_many_sites() -> None:
    strategy = federation({}, fraction_train=0.1, min_train_nodes=1)
    assert [len(done.weights) for done in strategy.history] == [2, 2, 2]
    strategy = federation({}, fraction_train=0.1, policy={"min_sites": 3})
    assert [len(done.weights) for done in strategy.history] == [3, 3, 3]


def test_a_simulation_has_no_least_number_unless_it_is_set(tmp_path: Path) -> None:
    list(run(small(rounds=1, **{"participation.sampler": "plan", "participation.plan": "C1"})))
    with pytest.raises(UserError, match=r"policy\.min_sites = 2, and no round asks more than 1"):
        prepare(
            small(
                **{
                    "participation.sampler": "plan",
                    "participation.plan": "C1; C2",
                    "policy.min_sites": 2,
                }
            )
        )
    with pytest.raises(UserError, match=r"policy\.min_sites = 4, and no round asks more than 3"):
        prepare(small(**{"policy.min_sites": 4}))
    plan = {"participation.sampler": "plan", "participation.plan": "C1, C2; C1"}
    list(run(small(rounds=2, **plan, **{"policy.min_sites": 2}), tmp_path / "plan"))
    ledger = read_ledger(tmp_path / "plan" / "weights.csv")
    assert [entry.status for entry in ledger] == [
        *("weighted", "weighted", "not sampled"),
        *(ALONE, "not sampled", "not sampled"),
    ]


@pytest.mark.parametrize("method", ["alone", "centralised"])
def test_it_is_nothing_to_methods_whose_clients_share_no_model(method: str) -> None:
    plan = {"participation.sampler": "plan", "participation.plan": "C1, C2; C1"}
    *_, last = run(small(rounds=2, method=method, **plan, **{"policy.min_sites": 2})).rounds
    assert last.weights


def test_aggregate_takes_one_update_unless_a_policy_wants_more() -> None:
    sent = tiny.initial().arrays()
    update = {name: array + array.dtype.type(1) for name, array in sent.items()}
    options: dict[str, Any] = {"round": 0, "rounds": 3, "method": "fedavg"}
    assert feddraw.aggregate(sent, [(update, 10)], **options).weights == {"C1": 1.0}
    with pytest.raises(NoUpdateUsed, match="C1: unused: only 1 client could count") as raised:
        feddraw.aggregate(sent, [(update, 10)], policy={"min_sites": 2}, **options)
    assert raised.value.result.ledger[0].status == ALONE


def test_a_cap_in_multiples_of_the_share_of_one_site_is_said_to_limit_nobody(
    tmp_path: Path,
) -> None:
    policy = {"min_sites": 1, "cap_times": 1.5}
    federation({2: (1,)}, policy=policy, folder=tmp_path / "run")
    entry = read_ledger(tmp_path / "run" / "weights.csv")[4]
    assert entry.weight == 1.0
    assert entry.clause == "cap_times unmet"
    assert entry.status == "weighted: too few clients for policy.cap_times, which limits nobody"
    said = " ".join(weights_in_sentences(explain_run_weights(read_run(tmp_path / "run"))))
    assert (
        "With too few clients, policy.cap_times could not limit node 1002 in round 1: it counted"
        " up to 100.0 %." in said
    )


def test_sites_are_told_the_policy_as_it_was_agreed() -> None:
    with pytest.raises(UserError, match=r"policy\.min_sites must be a number of clients"):
        FedDRAW(policy={"min_sites": -1})
    assert MethodStrategy(fedavg(), policy={"cap": 0.5}).policy == Policy(cap=0.5)  # as agreed


def test_in_the_ready_app_it_does_not_take_the_place_of_the_limit_on_weights() -> None:
    settings = {"data": "phantom", "set": "policy.min_sites=3"}
    assert read_run_config(settings)[0].policy == Policy(cap_times=1.5, min_sites=3)

"""The gate: what is out of proportion is told, refused or clipped, and no door leads around it."""

from __future__ import annotations

import math
import os
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import tiny
from bad_updates import BAD
from feddraw.aggregation import aggregate
from feddraw.engines.processes import Processes
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.settings import Experiment
from feddraw.flower import MethodStrategy
from feddraw.server import gate
from feddraw.server.gate import NO_STEPS, Gate, inspect
from quadratics import Bowl, optimum, play
from small import small
from tiny import (
    METHODS,
    NAMES,
    Altered,
    Canned,
    bench,
    cohort_of,
    copied,
    initial,
    method_of,
    same,
    server_images,
    streamed,
    streaming_methods,
    through_gate,
    together,
    trained,
)

federate = partial(tiny.federate, proxy=server_images())
LONG = "FEDDRAW_LONG" in os.environ  # every method also where that takes seconds each


def longer(update, times, sent):
    """The same direction, so many times as far."""
    params = sent.params + np.float32(times) * (update.model.params - sent.params)
    return replace(update, model=replace(update.model, params=params))


def moved(lengths, **settings):
    """Clients that moved so far along the first axis, through the gate: what counts and what was
    found.
    """
    cohort = cohort_of([[length, 0.0] for length in lengths], [10] * len(lengths))
    return through_gate(cohort.updates, cohort.sent, len(lengths), Gate(**settings))


@pytest.mark.parametrize(("name", "refuses"), [("feddraw", False), ("inverse_steps", True)])
def test_steps_that_are_not_told_are_refused_only_by_a_method_that_computes_with_them(
    name, refuses
):
    cohort = cohort_of([[1.0, 0.0], [2.0, 0.0]], [10, 10], steps=[4, 4])
    silent = replace(cohort.updates[1], steps=None)
    verdicts = inspect([cohort.updates[0], silent], cohort.sent, method_of(name), 2, Gate())
    assert verdicts[0].reason == ""
    assert verdicts[1].reason == (NO_STEPS if refuses else "")
    assert np.isnan(replace(cohort, updates=[silent]).steps).all()


# --------------------------------------------------------------------------------------- proportion


def test_a_move_beyond_the_factor_is_told_in_the_ledger_and_counted_by_default():
    accepted, verdicts = moved([1, 1.2, 0.9, 30])
    assert len(accepted) == 4
    assert verdicts[3].status == "weighted: moved 27.3 times the median"
    assert [verdicts[client].status for client in range(3)] == ["weighted"] * 3


def test_a_move_beyond_the_factor_is_refused_where_that_is_asked_for():
    accepted, verdicts = moved([1, 1.2, 0.9, 30], norm="refuse")
    assert [update.client for update in accepted] == [0, 1, 2]
    assert verdicts[3].status == "refused: moved 27.3 times the median (limit 10)"


def test_the_gate_can_be_silent():
    assert {verdict.status for verdict in moved([1, 1, 1, 1e6], norm="off")[1].values()} == {
        "weighted"
    }


def test_the_factor_is_a_setting():
    assert moved([1, 1, 4], norm="refuse", factor=5)[1][2].status == "weighted"
    assert moved([1, 1, 4], norm="refuse", factor=3)[1][2].status.startswith("refused")


def test_clipping_cuts_a_move_to_medians_and_says_so():
    accepted, verdicts = moved([1, 1, 1, 8], clip=2)
    assert accepted[3].model.params.tolist() == [2, 0]
    assert verdicts[3].status == "weighted: clipped from 8 to 2 times the median"
    assert verdicts[3].distance == 2
    assert accepted[0].model.params.tolist() == [1, 0]


def test_clipping_keeps_variances_between_the_sent_and_the_clients():
    method = method_of("fedavg")
    sent = initial()
    engine = Altered(
        bench(method), lambda updates: [*updates[:3], longer(copied(updates[3]), 50, sent)]
    )
    options = {"rounds": 1, "seed": 0}
    plain = next(federate(sent, method, engine, NAMES, **options))
    clipped = next(federate(sent, method, engine, NAMES, gate=Gate(clip=1.5), **options))
    assert clipped.ledger[3].status.startswith("weighted: clipped from")
    assert clipped.ledger[3].weighted
    assert clipped.weights.keys() == plain.weights.keys()
    move = np.linalg.norm(clipped.model.params - sent.params)
    assert move < np.linalg.norm(plain.model.params - sent.params) / 3
    variances = [
        value for key, value in clipped.model.arrays().items() if key.endswith("running_var")
    ]
    assert all((value > 0).all() for value in variances)


CLIPPING = Gate(clip=1.1)
DOORS = {
    "experiment": lambda name: complete_settings(small(method=name, **{"gate.clip": 1.1})),
    "federation": lambda name: next(
        federate(
            initial(),
            method_of(name),
            bench(method_of(name)),
            NAMES,
            gate=CLIPPING,
            rounds=1,
            seed=0,
        )
    ),
    "aggregate": lambda name: aggregate(
        initial().arrays(),
        [],
        method=name,
        round=0,
        rounds=1,
        gate=CLIPPING,
        clients=["A"],
        outputs=2,
    ),
    "Flower": lambda name: MethodStrategy(method_of(name), gate=CLIPPING),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ["feddyn", "fedavg+feddyn"])
def test_clipping_is_refused_where_clients_remember_their_whole_moves(name, door):
    """FedDyn's server would keep the mean of other moves than its clients remember."""
    with pytest.raises(UserError, match="does not fit this method: its clients") as error:
        DOORS[door](name)
    assert "\n" not in str(error.value)


def test_under_clipping_scaffold_comes_to_the_optimum_because_controls_are_never_clipped():
    bowls = [Bowl(1.0, 0.0, images=6), Bowl(2.0, 5.0, images=4), Bowl(4.0, 1.0, images=2)]
    method = method_of("fedavg+scaffold")
    played = play(method, bowls, 0.3, rounds=60, steps=5, gate=Gate(clip=1.1))
    statuses = [entry.status for round in played for entry in round.result.ledger]
    assert sum("clipped" in status for status in statuses) > 5
    last = played[-1]
    controls = [memory["control"] for _, memory in sorted(last.memory.items())]
    mean = np.array([0.5, 1 / 3, 1 / 6]) @ np.stack(controls)
    assert last.state["server"]["control"] == pytest.approx(mean, abs=1e-5)
    assert last.x == pytest.approx(optimum(bowls, [6, 4, 2]), abs=1e-4)


def test_a_refusal_comes_before_clipping():
    assert moved([1, 1, 1, 80], norm="refuse", clip=2)[1][3].status.startswith("refused")


def test_one_or_two_clients_have_nobody_to_be_compared_with():
    for lengths in ([5.0], [1.0, 1e6]):
        assert {
            verdict.status for verdict in moved(lengths, norm="refuse", factor=2)[1].values()
        } == {"weighted"}


def test_where_most_have_not_moved_there_is_nothing_to_compare_with():
    assert len(moved([0, 0, 0, 1], norm="refuse", clip=1)[0]) == 4
    assert len(moved([0, 0, 0, 50], norm="refuse", clip=1)[0]) == 4  # however far the one went


def test_vectors_beside_the_model_are_compared_too():
    method = method_of("scaffold")
    (name,) = method.sends

    def poison(updates):
        first = copied(updates[0])
        return [replace(first, extra={name: 1000 * first.extra[name]}), *updates[1:]]

    engine = Altered(bench(method), poison)
    result = next(
        federate(initial(), method, engine, NAMES, rounds=1, seed=0, gate=Gate(norm="refuse"))
    )
    assert result.ledger[0].status.startswith(f"refused: {name} of ")


@pytest.mark.parametrize("name", METHODS)
def test_a_scaled_update_is_refused_under_every_method(name):
    run = trained(name)
    sent, state = run.before(1)
    *others, last = run.updates[1]
    gate = Gate(norm="refuse")
    result = together(run.method, sent, state, [*others, longer(last, 1000, sent)], gate=gate)
    without = together(run.method, sent, state, others, gate=gate)
    assert result.ledger[3].status.startswith("refused: moved")
    assert same(result.model, without.model)


# -------------------------------------------------------------------------------------- who answers


def one_round(updates, clients=NAMES):
    return next(
        federate(initial(), method_of("fedavg"), Canned(updates), clients, rounds=1, seed=0)
    )


@pytest.fixture(scope="module")
def good():
    return trained("fedavg").updates[0]


def test_a_client_that_answers_twice_does_not_count_twice(good):
    result = one_round([*good, good[1]])
    assert result.ledger[1].status == "refused: answered 2 times in one round"
    assert same(result.model, one_round([good[0], *good[2:]]).model)


@pytest.mark.parametrize("number", [4, -1, 10**9])
def test_a_stranger_is_refused_and_has_a_line_in_the_ledger(good, number):
    result = one_round([*good, replace(good[0], client=number)])
    assert result.ledger[4].client == f"stranger {number}"
    assert result.ledger[4].status == "refused: not a client of this federation"
    assert same(result.model, one_round(good).model)


def test_fewer_updates_than_clients_are_missing(good):
    assert [entry.status for entry in one_round(good[:2]).ledger] == [
        "weighted",
        "weighted",
        "missing",
        "missing",
    ]


@pytest.mark.parametrize("name", METHODS if LONG else ["scaffold"])
def test_no_bad_update_from_a_worker_process_is_averaged(name):
    """The serial engine's are tried in the battery."""
    method = method_of(name)
    options = {"rounds": 2, "seed": 0}
    with closing(Processes(bench(method).trainer, 1, NAMES)) as engine:
        kept = []
        next(
            federate(
                initial(),
                method,
                Altered(engine, lambda updates: kept.extend(updates) or updates),
                NAMES,
                **options,
            )
        )
        first, *others = sorted(map(copied, kept), key=lambda update: update.client)
        del kept[:]  # they lie in memory that is about to go
    without = next(federate(initial(), method, Canned(others), NAMES, **options))
    for how, (spoilt, reason) in BAD.items():
        result = next(
            federate(initial(), method, Canned([spoilt(first), *others]), NAMES, **options)
        )
        assert result.ledger[0].status.startswith(f"refused: {reason}"), how
        assert same(result.model, without.model), how


@pytest.mark.parametrize("name", streaming_methods())
def test_no_bad_update_enters_a_running_sum(name):
    run = trained(name)
    bad, *others = run.updates[1]
    stream = partial(streamed, run.method, *run.before(1))
    without = stream(others)
    for how, (spoilt, reason) in BAD.items():
        result = stream([spoilt(bad), *others])
        assert result.ledger[0].status.startswith(f"refused: {reason}"), how
        assert same(result.model, without.model), how
    again = stream([*others, others[0], replace(bad, client=7)])
    assert [
        entry.client for entry in again.ledger if entry.status.startswith("refused: not a client")
    ] == ["stranger 7"]
    assert again.ledger[1].status == "weighted: answered again, its first answer counts"
    assert same(again.model, without.model)


@pytest.mark.parametrize("name", METHODS if LONG else ["feddraw", "scaffold"])
def test_no_bad_reply_over_flower_is_averaged(name):
    pytest.importorskip("flwr", reason="Flower is not installed")
    from bad_replies import BAD_BESIDE, BAD_REPLIES, NODES, answered, reply, server, spoilt

    method, updates = method_of(name), trained(name).updates[1]
    sent, state = trained(name).before(1)
    contents = [reply(update, NAMES[update.client]) for update in updates]
    kinds = BAD_REPLIES | (BAD_BESIDE if method.sends else {})

    def outcome(first):
        strategy = server(method, sent, state, server_images())
        replies = [reply(update, NAMES[update.client]) for update in updates[1:]]
        strategy.aggregate_train(
            1, [answered(node, one) for node, one in zip(NODES, [first, *replies], strict=True)]
        )
        return strategy

    without = outcome(spoilt(contents[0], BAD_REPLIES["nothing"][0])).model
    for how, (change, reason) in kinds.items():
        found = outcome(spoilt(contents[0], change))
        status = {entry.client: entry.status for entry in found.history[0].ledger}
        assert status[NAMES[0]].startswith(f"refused: {reason}"), how
        assert "\n" not in status[NAMES[0]], how
        assert [status[other] for other in NAMES[1:]] == ["weighted"] * 3, how
        assert same(found.model, without), how


# ----------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"gate.norm": "ignore"}, "gate.norm must be one of off, warn, refuse, not ignore"),
        ({"gate.factor": 0.5}, "gate.factor must be at least 1, not 0.5"),
        ({"gate.factor": math.nan}, "gate.factor must be at least 1"),
        ({"gate.clip": -1.0}, "gate.clip must be zero or more"),
        ({"gate.max_size": 0}, "gate.max_size must be at least 1 image"),
        ({"gate.nrm": "warn"}, "gate has no setting 'nrm': it has norm, factor, clip, max_size"),
        ({"gate": "refuse"}, "gate is a table: set one of its values, such as gate.norm"),
    ],
)
def test_a_mistake_in_the_settings_is_one_line(settings, says):
    from feddraw.experiment.completion import complete_settings

    with pytest.raises(UserError) as error:
        complete_settings(Experiment().with_settings(settings))
    assert says in str(error.value)


@pytest.mark.parametrize(
    "wrong", [{"norm": "refuze"}, {"factor": 0.5}, {"clip": -1.0}, {"max_size": 0}]
)
def test_a_gate_with_wrong_settings_cannot_be_made(wrong):
    with pytest.raises(UserError, match=f"gate.{next(iter(wrong))} must be"):
        Gate(**wrong)


def test_the_gate_is_a_section_of_the_experiment():
    experiment = Experiment().with_settings({"gate.norm": "refuse", "gate.max_size": 5000})
    assert experiment.gate == Gate(norm="refuse", max_size=5000)
    assert experiment.table()["gate"]["norm"] == "refuse"
    assert Experiment.of(experiment.table()) == experiment


def test_a_client_that_claims_more_images_than_allowed_is_refused(good):
    _, verdicts = through_gate(
        [replace(good[0], size=5001), *good[1:]], initial(), 4, Gate(max_size=5000)
    )
    assert verdicts[0].status == "refused: size 5001 is not a positive number up to 5000"


# Counts of two findings: positives of both groups, those of them that were called, then all labels
# and the right calls.
GROUP_COUNTS = [3, 4, 2, 2, 1, 4, 2, 0, 20, 15]


@pytest.mark.parametrize(("place", "count"), [(4, 4), (5, 5), (6, 3), (7, 3), (8, 0), (9, 21)])
def test_counts_of_groups_call_no_more_than_there_is(place: int, count: int) -> None:
    """One finding out of bounds is enough, in either group."""
    honest = np.array(GROUP_COUNTS, np.float32)
    assert gate._group_counts_refusal(honest) == ""
    dishonest = honest.copy()
    dishonest[place] = count
    assert gate._group_counts_refusal(dishonest) == "counts of groups that no images give"

"""Who takes part: drawn from seed and round alone, so that methods, engines and resumed runs all
ask the same.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from feddraw.core.participation import Participation
from feddraw.errors import UserError
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import iterate, run
from feddraw.methods.feddraw import feddraw
from feddraw.methods.fednova import fednova
from feddraw.results.run_folder import RunFolder
from feddraw.system.file_reading import read_csv
from small import small
from tiny import NAMES, SIZES, bench, same, train

HALF = Participation("uniform", fraction=0.5)


def asked(participation, round, seed=0, clients=NAMES, sizes=SIZES):
    return participation.efforts(seed, round, clients, sizes)


def test_everybody_takes_part_unless_told_otherwise():
    assert asked(Participation(), 7) == dict.fromkeys(range(4), 1.0)


def test_a_draw_depends_on_seed_and_round_only():
    draws = [tuple(asked(HALF, round)) for round in range(20)]
    assert draws == [tuple(asked(HALF, round)) for round in range(20)]
    assert all(len(draw) == 2 for draw in draws)
    assert len(set(draws)) > 3
    assert draws != [tuple(asked(HALF, round, seed=1)) for round in range(20)]


def test_the_same_clients_are_drawn_with_every_version_of_numpy():
    assert [tuple(asked(HALF, round)) for round in range(4)] == GOLDEN


GOLDEN = [(0, 1), (0, 3), (1, 2), (0, 1)]


def test_by_size_larger_clients_are_drawn_more_often_and_uniformly_all_alike():
    sizes = (60, 20, 10, 10)
    one = {name: Participation(name, fraction=0.25) for name in ("by_size", "uniform")}
    shares = {
        name: Counter(c for round in range(4000) for c in asked(rule, round, sizes=sizes))
        for name, rule in one.items()
    }
    assert [shares["by_size"][c] / 4000 for c in range(4)] == pytest.approx(
        [0.6, 0.2, 0.1, 0.1], abs=0.03
    )
    assert [shares["uniform"][c] / 4000 for c in range(4)] == pytest.approx([0.25] * 4, abs=0.03)


def test_at_least_one_client_is_always_asked():
    assert len(asked(Participation("uniform", fraction=0.01), 0)) == 1


def test_a_plan_goes_round_and_round():
    plan = Participation("plan", plan="North, West; East")
    plan.check(NAMES, 4)
    assert [list(asked(plan, round)) for round in range(4)] == [[0, 3], [1], [0, 3], [1]]


def test_clients_join_and_leave():
    rule = Participation(joins="West=2", leaves="North=3, East=1")
    rule.check(NAMES, 5)
    assert [list(asked(rule, round)) for round in range(4)] == [
        [0, 1, 2],
        [0, 2],
        [0, 2, 3],
        [2, 3],
    ]


def test_stragglers_are_some_of_those_asked_and_take_fewer_steps():
    rule = Participation(stragglers=0.5, effort=0.4)
    slow = [{c for c, effort in asked(rule, round).items() if effort == 0.4} for round in range(10)]
    assert all(len(clients) == 2 for clients in slow)
    assert len({frozenset(clients) for clients in slow}) > 2


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (Participation(sampler="some"), "must be one of"),
        (Participation("uniform", fraction=0.0), "fraction"),
        (Participation(stragglers=1.5), "stragglers"),
        (Participation(effort=float("nan")), "effort"),
        (Participation("plan"), "go together"),
        (Participation(plan="North"), "go together"),
        (Participation("plan", plan="Nroth"), "did you mean North"),
        (Participation(joins="West"), "must read like"),
        (Participation(joins="West=2, West=3"), "must read like"),
        (Participation(leaves="Wset=3"), "did you mean West"),
        (
            Participation(leaves="North=0, East=0, South=0, West=2"),
            "no client takes part in round 2",
        ),
        (
            Participation("plan", plan="North; East", joins="East=2"),
            "no client takes part in round 1",
        ),
    ],
)
def test_a_mistake_is_one_line(wrong, word):
    with pytest.raises(UserError, match=word) as error:
        wrong.check(NAMES, 4)
    assert "\n" not in str(error.value)


# -------------------------------------------------------------------------------------- in the loop


def efforts_of(rule):
    return lambda round: rule.efforts(0, round, NAMES, SIZES)


def test_the_ledger_says_who_was_not_asked_and_the_annealed_weights_are_over_those_who_were():
    rounds = 6
    for result in train(feddraw(), rounds, efforts=efforts_of(HALF)):
        there = asked(HALF, result.round)
        status = ["weighted" if client in there else "not sampled" for client in range(4)]
        assert [entry.status for entry in result.ledger] == status
        assert sum(result.weights.values()) == pytest.approx(1)
        counted = [entry for entry in result.ledger if entry.status == "weighted"]
        assert sum(entry.prior for entry in counted) == pytest.approx(1)
        assert {entry.gamma for entry in counted} == {np.exp(-0.4 * result.round)}
    assert set(result.weights.values()) == {0.5}


def test_stragglers_take_their_share_of_steps_and_fednova_counts_them():
    rule = Participation(stragglers=0.5, effort=0.4)
    result = train(fednova(), efforts=efforts_of(rule))[0]
    efforts = asked(rule, 0)
    full = (5, 3, 2, 1)
    steps = [max(1, int(efforts[c] * full[c] + 0.5)) for c in range(4)]
    assert [entry.steps for entry in result.ledger] == steps
    share = np.array(SIZES) / sum(SIZES)
    assert [entry.weight for entry in result.ledger] == pytest.approx(
        share / steps * (share @ steps)
    )


def test_a_client_that_was_not_asked_is_not_trained():
    engine = bench(feddraw())
    plan = Participation("plan", plan="North, West; East")
    results = train(feddraw(), 2, engine=engine, efforts=efforts_of(plan))
    assert list(results[0].weights) == ["North", "West"]
    assert results[1].weights == {"East": 1.0}


PART = {
    "participation.sampler": "uniform",
    "participation.fraction": 0.67,
    "participation.stragglers": 0.5,
    "method": "moon",
}


@pytest.fixture(scope="module")
def whole():
    return list(run(small().with_settings(PART)))


def test_engines_give_the_same_bits_with_some_clients(whole):
    other = list(run(small().with_settings(PART | {"engine": "processes", "workers": 1})))
    for one, two in zip(whole, other, strict=True):
        assert same(one.model, two.model)
        assert [repr(entry) for entry in one.ledger] == [repr(entry) for entry in two.ledger]


def test_a_resumed_run_goes_on_with_the_same_clients(whole, tmp_path):
    experiment = small().with_settings(PART)
    rounds = iterate(experiment, tmp_path / "run")
    next(rounds)
    rounds.close()
    assert len({line["status"] for line in read_csv(RunFolder(tmp_path / "run").ledger)}) == 2
    rest = list(run(experiment, tmp_path / "run", resume=True))
    assert same(rest[-1].model, whole[-1].model)


def test_a_wrong_client_name_is_refused_before_anything_is_trained():
    clients = prepare(small()).clients
    with pytest.raises(UserError, match=f"did you mean {clients[0]}"):
        prepare(small().with_settings({"participation.leaves": f"{clients[0]}x=2"}))

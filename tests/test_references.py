"""Each client alone, and all together: the paper's acceptance test of a scenario."""

from __future__ import annotations

import math
from typing import Any

import pytest

from feddraw.core import Update
from feddraw.experiment.scenario_check import (
    ALL_TOGETHER,
    ScenarioCheck,
    TrainedAlone,
    check_scenario,
)
from small import small


def alone(client: str, small: bool, auc: float) -> TrainedAlone:
    return TrainedAlone(client, 10, small, auc, {})


def test_every_client_and_all_together_train_for_the_same_number_of_steps() -> None:
    updates: list[Update] = []
    found = check_scenario(small(), 4, lambda _, update: updates.append(update))
    assert [update.steps for update in updates] == [4, 4, 4, 4]
    assert [one.client for one in found.clients] == ["C1", "C2", "C3"]
    assert found.together.client == ALL_TOGETHER
    assert found.together.size == sum(one.size for one in found.clients)
    assert all(0 < one.auc < 1 for one in (*found.clients, found.together))


def test_the_small_clients_of_the_papers_scenarios_are_those_it_names() -> None:
    experiment = small(scenario="CHM-2", **{"scenario.scale": 0.01, "data.train": 785})
    assert [one.small for one in check_scenario(experiment, 2).clients] == [True, True, True, False]


@pytest.mark.parametrize("stream", [False, True])
def test_two_workers_give_the_same_numbers(stream: bool) -> None:
    assert check_scenario(small(engine="processes", workers=2, stream=stream), 3) == check_scenario(
        small(), 3
    )


@pytest.mark.parametrize(
    ("areas", "accepted"),
    [((0.8, 0.7, 0.6), True), ((0.8, 0.5, 0.6), False), ((0.8, 0.6, 0.6), False)],
)
def test_a_scenario_is_accepted_if_the_worst_small_client_beats_the_best_large_one(
    areas: Any, accepted: bool
) -> None:
    first, second, large = areas
    clients = (alone("C1", True, first), alone("C2", True, second), alone("C3", False, large))
    found = ScenarioCheck("CHM-2", 10, clients, alone(ALL_TOGETHER, False, 0.9))
    assert found.accepted is accepted
    assert found.margin == pytest.approx(min(first, second) - large)


def test_without_small_clients_there_is_nothing_to_accept() -> None:
    found = ScenarioCheck(
        "CHM-5",
        10,
        (alone("C1", False, 0.5), alone("C2", False, 0.6)),
        alone(ALL_TOGETHER, False, 0.7),
    )
    assert math.isnan(found.margin)
    assert not found.accepted

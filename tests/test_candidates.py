"""Candidates of the atlas, between size and equal weights: each by hand, and where it is FedAvg or
uniform averaging.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from feddraw.core import Measurement, Model, gram
from feddraw.methods.fedavg import fedavg
from feddraw.methods.random_effects import LARGEST_RHO, weights_by_rho
from studies.candidates import (
    effects_then_uniform,
    move_effects,
    move_effects_rho,
    power_by_validation,
    size_until_slow,
    variance_equations,
)
from test_random_effects import RHO, SIZES, three_sites
from tiny import cohort_of, same, train


def test_rho_of_the_first_rounds_is_held_and_the_clock_ends_at_equal_weights():
    rule = effects_then_uniform(until=2).aggregation.weighting
    state = rule.init()
    first, state = rule.weigh(three_sites(round=0), state)
    assert first.values == pytest.approx(weights_by_rho(np.array(SIZES, float), float(RHO)))
    nothing = three_sites(images=np.zeros(3), round=1)
    assert rule.weigh(nothing, state)[1] == state  # nothing was measured, so nothing is learnt
    alike = three_sites(variances=np.full(3, 1e9), round=1)  # noise explains all: rho is 0
    _, state = rule.weigh(alike, state)
    assert state == {"rho": pytest.approx(float(RHO) / 2), "measured": 2}
    later, after = rule.weigh(three_sites(round=7), state)
    assert after == state
    part = 1 - math.exp(-0.2 * 7)
    expected = part * weights_by_rho(np.array(SIZES, float), float(RHO) / 2) + (1 - part) / 3
    assert later.values == pytest.approx(expected)
    assert rule.weigh(three_sites(round=14), state)[0].values == pytest.approx([1 / 3] * 3)


def test_clients_stop_measuring_once_rho_is_held():
    rule = effects_then_uniform(until=3).aggregation.weighting
    told = [
        Measurement.from_broadcast(rule.broadcast({"rho": 0.1, "measured": count})).every
        for count in (0, 2, 3)
    ]
    assert told[:2] == [1, 1]
    assert told[2] > 100_000
    measured = [
        sum(entry.measured for entry in result.ledger)
        for result in train(effects_then_uniform(until=2, batch_size=4), 4)
    ]
    assert measured[0] == measured[1] > 0
    assert measured[2:] == [0, 0]


def test_the_two_equations_by_hand():
    """Sizes 1 and 3, moves 0 and 2 in one dimension: mean by size 1.5, plain mean 1."""
    system = variance_equations(np.array([1.0, 3.0]), np.array([[0.0, 0.0], [0.0, 4.0]]))
    assert system.tolist() == [
        pytest.approx([1, 4 - 10 / 4, 3]),
        pytest.approx([0.5 * 4 / 3, 1, 2]),
    ]


def test_moves_without_bias_find_both_variances():
    rng = np.random.default_rng(0)
    sizes, sigma, tau, dims = np.array([10.0, 20, 40, 160, 300]), 2.0, 0.2, 400
    total = np.zeros((2, 3))
    for _ in range(60):
        noise = rng.standard_normal((5, dims)) * sigma / np.sqrt(sizes)[:, None]
        moves = noise + tau * rng.standard_normal((5, dims))
        total += variance_equations(sizes, gram(moves, np.zeros(dims)))
    assert move_effects_rho(total) == pytest.approx(tau**2 / sigma**2, rel=0.1)
    alike = variance_equations(np.full(4, 7.0), np.eye(4))
    assert move_effects_rho(alike) == 0  # equal clients: nothing to solve, nothing to choose
    only_noise = sum(
        variance_equations(
            sizes, gram(rng.standard_normal((5, dims)) / np.sqrt(sizes)[:, None], np.zeros(dims))
        )
        for _ in range(60)
    )
    assert move_effects_rho(only_noise) < 2e-4


def test_moves_are_taken_per_step_and_only_before_until():
    rule = move_effects(until=1).aggregation.weighting
    rows = np.array([[4.0, 0], [1.0, 0], [2.0, 0]])
    per_step = cohort_of(
        rows, [4, 1, 2], sent=[0, 0], steps=[4, 1, 2]
    )  # all the same move per step
    weights, state = rule.weigh(per_step, rule.init())
    assert weights.values == pytest.approx([4 / 7, 1 / 7, 2 / 7])
    apart = cohort_of(-rows, [4, 1, 2], sent=[0, 0], steps=[1, 1, 1])
    assert rule.weigh(apart, state)[1] is state


def test_without_end_rho_is_a_number_that_a_ledger_can_hold():
    cohort = cohort_of([[5.0], [0.0], [0.1]], [30, 1, 2])
    assert math.isinf(
        move_effects_rho(variance_equations(cohort.sizes, gram(cohort.params, np.zeros(1))))
    )
    rule = move_effects().aggregation.weighting
    weights, _ = rule.weigh(cohort, rule.init())
    assert weights.parts["rho"] == LARGEST_RHO
    assert weights.values == pytest.approx([1 / 3] * 3)


class NearestTo:
    """Images at the server whose loss is lowest at one point."""

    def __init__(self, point: float) -> None:
        self.point, self.seen = point, list[float]()

    def loss(self, model: Model) -> float:
        self.seen.append(float(model.params[0]))
        return abs(float(model.params[0]) - self.point)


@pytest.mark.parametrize(("best", "power"), [(0.8, 1.0), (0.5, 0.0), (2 / 3, 0.5)])
def test_validation_chooses_the_power_for_the_next_phase_and_only_at_its_end(best, power):
    rule, proxy = power_by_validation(phase=2).aggregation.weighting, NearestTo(best)
    state = rule.init()
    for round, expected in enumerate([1.0, 1.0, power]):
        cohort = replace(cohort_of([[1.0, 0], [0.0, 0]], [4, 1], round=round), proxy=proxy)
        weights, state = rule.weigh(cohort, state)
        share = 4**expected
        assert weights.values == pytest.approx([share / (share + 1), 1 / (share + 1)])
    assert proxy.seen == pytest.approx([0.8, 2 / 3, 0.5])


def test_size_counts_until_the_loss_falls_slowly_and_never_again():
    rule = size_until_slow(least=0.1).aggregation.weighting
    state, found = rule.init(), []
    for losses in ([1.0, 1.0], [0.8, 0.8], [0.75, 0.75], [0.1, 0.1]):
        extra = [{"loss": np.array([loss], np.float32)} for loss in losses]
        weights, state = rule.weigh(cohort_of(np.zeros((2, 2)), [3, 1], extra=extra), state)
        found.append(weights.values[0])
    assert found == pytest.approx([0.75, 0.75, 0.5, 0.5])


def test_what_it_is_made_of_is_found_in_a_whole_training():
    by_size, slow = (
        train(size_until_slow(least=0.0), 1)[-1],
        train(size_until_slow(least=0.99), 3)[-1],
    )
    assert same(by_size.model, train(fedavg(), 1)[-1].model)
    assert list(slow.weights.values()) == pytest.approx([0.25] * 4)

"""Shapley values against brute force over all coalitions and all orders, their axioms, and the
coverage of sampled ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import permutations
from math import factorial

import numpy as np
import pytest
from scipy import stats

from feddraw.analysis.coalitions import (
    Game,
    SampledValues,
    coalition_of,
    leave_one_out,
    members_of,
    remembered,
    sampled_shapley_values,
    shapley_values,
)


def table_game(table: np.ndarray, present: Sequence[int]) -> Game:
    """A game whose coalitions are worth what a table says."""
    return Game(tuple(present), lambda coalitions: table[list(coalitions)])


def random_game(players: int, seed: int) -> Game:
    values = np.random.default_rng(seed).normal(size=1 << players)
    return table_game(values, range(players))


def by_all_orders(players: int, game: Game) -> np.ndarray:
    """The referee: what each adds to those before it, over all orders, in exact fractions."""
    worth = {c: Fraction(float(game.value([c])[0])) for c in range(1 << players)}
    totals = [Fraction(0)] * players
    for order in permutations(range(players)):
        coalition = 0
        for player in order:
            with_player = coalition | 1 << player
            totals[player] += worth[with_player] - worth[coalition]
            coalition = with_player
    return np.array([float(total / factorial(players)) for total in totals])


@pytest.mark.parametrize("players", [1, 2, 3, 6])
def test_exact_values_are_those_of_all_orders(players: int) -> None:
    game = random_game(players, seed=players)
    assert np.allclose(
        shapley_values(players, [game]), by_all_orders(players, game), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("values_of", [leave_one_out, shapley_values])
def test_a_game_that_nobody_plays_brings_nothing(values_of: Callable[..., np.ndarray]) -> None:
    values = np.random.default_rng(1).normal(size=(4, 2, 3))
    nobody = table_game(values, ())
    both = table_game(values, (0, 1))
    assert np.array_equal(values_of(2, [nobody]), np.zeros((2, 2, 3)))
    assert np.array_equal(values_of(2, [nobody, both]), values_of(2, [both]))


def test_two_players_by_hand() -> None:
    # nobody 0.5, first 0.6, second 0.9, both 0.8: the first adds 0.1 or -0.1, the second 0.4 or 0.2
    game = table_game(np.array([0.5, 0.6, 0.9, 0.8]), range(2))
    assert np.allclose(shapley_values(2, [game]), [0.0, 0.3])
    assert np.allclose(leave_one_out(2, [game]), [-0.1, 0.2])


@pytest.mark.parametrize("players", [2, 5, 10])
def test_they_add_up_to_what_all_gained_over_nobody(players: int) -> None:
    games = [random_game(players, seed) for seed in range(3)]
    gained = sum(float(g.value([g.everybody])[0] - g.value([0])[0]) for g in games)
    assert abs(shapley_values(players, games).sum() - gained) < 1e-9


def test_players_who_add_the_same_to_everybody_get_the_same() -> None:
    rng = np.random.default_rng(3)
    by_shape = rng.normal(size=(3, 1 << 3))  # how many of 0 and 1 are there, and who of 2, 3, 4
    table = np.array([by_shape[(c & 1) + (c >> 1 & 1), c >> 2] for c in range(1 << 5)])
    values = shapley_values(5, [table_game(table, range(5))])
    assert values[0] == pytest.approx(values[1], abs=1e-12)
    assert values[2] != pytest.approx(values[3], abs=1e-3)


def test_a_site_that_changes_nothing_or_is_not_there_gets_nothing() -> None:
    rng = np.random.default_rng(4)
    of_others = rng.normal(size=1 << 3)
    table = np.array([of_others[c & 0b111] for c in range(1 << 4)])
    values = shapley_values(5, [table_game(table, range(4))])
    assert values[3] == pytest.approx(0, abs=1e-15)
    assert values[4] == 0
    assert leave_one_out(5, [table_game(table, range(4))])[3:].tolist() == [0, 0]


def test_every_draw_of_patients_is_a_game_of_its_own() -> None:
    table = np.random.default_rng(5).normal(size=(1 << 4, 2, 7))
    values = shapley_values(4, [table_game(table, range(4))])
    assert values.shape == (4, 2, 7)
    one = shapley_values(4, [table_game(table[:, 1, 3], range(4))])
    assert np.allclose(values[:, 1, 3], one)


def test_a_coalition_is_valued_once() -> None:
    asked: list[int] = []

    def value(coalitions: Sequence[int]) -> np.ndarray:
        asked.extend(coalitions)
        return np.array([float(c) for c in coalitions])

    game = Game((0, 1, 2), remembered(value))
    leave_one_out(3, [game])
    shapley_values(3, [game])
    assert sorted(asked) == list(range(8))
    assert members_of(coalition_of([0, 2])) == [0, 2]


def test_sampled_values_cover_the_exact_ones_in_93_of_100_simulations() -> None:
    """Twelve players in two games, sampled until the error is small, as the command does."""
    players = 12
    sizes = np.array([bin(c).count("1") for c in range(1 << players)])
    covered = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        strength = rng.gamma(1.0, size=players)
        bits = (np.arange(1 << players)[:, None] >> np.arange(players)) & 1
        table = np.log1p(bits @ strength) + 0.1 * rng.normal(size=1 << players) + 0.01 * sizes
        games = [table_game(table, range(players)), table_game(table[::-1], range(1, players))]

        def enough(sampled: SampledValues) -> bool:
            return bool(np.sqrt(sampled.variance).max() < 0.02)

        sampled = sampled_shapley_values(players, games, rng, enough)
        exact = shapley_values(players, games)
        half = stats.t.ppf(0.975, len(sampled.pairs) - 1) * np.sqrt(sampled.variance)
        covered += (np.abs(sampled.mean - exact) <= half).tolist()
        assert sampled.mean.sum() == pytest.approx(exact.sum(), abs=1e-9)
    assert np.mean(covered) >= 0.93


def test_the_number_of_permutations_follows_from_their_error() -> None:
    game = random_game(6, seed=1)
    drawn = []
    for limit in (1.0, 0.05):
        sampled = sampled_shapley_values(
            6,
            [game],
            np.random.default_rng(0),
            lambda now, limit=limit: bool(np.sqrt(now.variance).max() < limit),
        )
        drawn.append(len(sampled.pairs))
        assert np.sqrt(sampled.variance).max() < limit
    assert drawn[0] == 30 < drawn[1]

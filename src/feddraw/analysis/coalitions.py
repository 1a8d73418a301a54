"""What each player of a game brings: leave-one-out and Shapley values, exact or sampled.

A coalition is a whole number whose bits say who is in it. A game gives the values of many
coalitions at once, each an array of one shape: one number, or a number for each draw of patients.
Several games with the same players, such as the rounds of a training, are added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Coalitions = Sequence[int]
# (coalitions, *shape): what each of these coalitions is worth.
Value = Callable[[Coalitions], Floats]

MOST_EXACT = 10  # players of whom all coalitions are valued
PAIRS_OF_BLOCK = 30  # of permutations: fewer say too little of their own spread
MOST_PAIRS = 900


def coalition_of(members: Sequence[int]) -> int:
    return sum(1 << member for member in members)


def members_of(coalition: int) -> list[int]:
    return [player for player in range(coalition.bit_length()) if coalition >> player & 1]


@dataclass(frozen=True, eq=False)
class Game:
    """What each coalition of some players is worth."""

    present: tuple[int, ...]  # the players; all others of the federation bring nothing here
    value: Value

    @property
    def everybody(self) -> int:
        return coalition_of(self.present)


@dataclass(frozen=True, eq=False)
class SampledValues:
    """Shapley values from permutations, each drawn with its reverse."""

    pairs: Floats  # (pairs, players, *shape): the mean of a permutation and its reverse

    @property
    def mean(self) -> Floats:
        """(players, *shape): the estimate, which is unbiased."""
        return np.asarray(self.pairs.mean(axis=0))

    @cached_property
    def variance(self) -> Floats:
        """(players, *shape): of the mean, by the sampling of permutations alone."""
        return np.asarray(self.pairs.var(axis=0, ddof=1) / len(self.pairs))


def leave_one_out(players: int, games: Sequence[Game]) -> Floats:
    """(players, *shape): what all are worth minus what all others are worth, over all games."""
    total: Floats | float = 0.0
    for game in games:
        without = [game.everybody ^ (1 << player) for player in game.present]
        values = game.value([game.everybody, *without])
        total = total + _of_everyone(players, game, values[0] - values[1:])
    return np.asarray(total)


def shapley_values(players: int, games: Sequence[Game]) -> Floats:
    """(players, *shape): the mean, over all orders in which players may come, of what a player adds
    to those before it; over all games. They add up to what all are worth minus what nobody is.
    """
    total: Floats | float = 0.0
    for game in games:
        count = len(game.present)
        coalitions = [
            coalition_of([game.present[place] for place in members_of(subset)])
            for subset in range(1 << count)
        ]
        values = game.value(coalitions)
        coefficients = _shapley_coefficients(count)
        shares = np.tensordot(coefficients, values, axes=1)
        total = total + _of_everyone(players, game, shares)
    return np.asarray(total)


def _shapley_coefficients(players: int) -> Floats:
    """(players, coalitions): what the value of each coalition counts in each player's share."""
    coefficients = np.zeros((players, 1 << players))
    orders = math.factorial(players)
    for coalition in range(1 << players):
        size = coalition.bit_count()
        for player in range(players):
            inside = coalition >> player & 1
            before = size - inside  # who comes before the player
            share = math.factorial(before) * math.factorial(players - before - 1) / orders
            coefficients[player, coalition] = share if inside else -share
    return coefficients


def sampled_shapley_values(
    players: int,
    games: Sequence[Game],
    rng: np.random.Generator,
    enough: Callable[[SampledValues], bool],
    on_game: Callable[[int, int], None] = lambda pairs, game: None,
) -> SampledValues:
    """Shapley values from random orders, until they are enough, or `MOST_PAIRS` are drawn.

    An order is taken with its reverse: who comes early in the one comes late in the other, so
    their mean varies less. No order is cut short, and one order serves all games. Orders are drawn
    in blocks, and a game is played in all orders of a block before the next one is; `on_game` is
    told how many pairs are ready and how many games of the next block.
    """
    pairs: list[Floats] = []
    while len(pairs) < MOST_PAIRS:
        orders = [rng.permutation(players).tolist() for _ in range(PAIRS_OF_BLOCK)]
        block: list[Floats | float] = [0.0] * PAIRS_OF_BLOCK
        for number, game in enumerate(games):
            for place, order in enumerate(orders):
                forth = _added_in_order(players, game, order)
                back = _added_in_order(players, game, order[::-1])
                block[place] = block[place] + (forth + back) / 2
            on_game(len(pairs), number + 1)
        pairs += [np.asarray(added) for added in block]
        sampled = SampledValues(np.stack(pairs))
        if enough(sampled):
            return sampled
    return SampledValues(np.stack(pairs))


def _added_in_order(players: int, game: Game, order: Sequence[int]) -> Floats:
    """(players, *shape): what each adds to those before it."""
    coming = [player for player in order if player in game.present]
    growing = [0]
    for player in coming:
        growing.append(growing[-1] | 1 << player)
    values = game.value(growing)
    added = np.zeros((players, *values.shape[1:]))
    added[coming] = np.diff(values, axis=0)
    return added


def _of_everyone(players: int, game: Game, of_present: Floats) -> Floats:
    """(players, *shape): zeros for who is not in the game, also where nobody is."""
    shares = np.zeros((players, *of_present.shape[1:]))
    shares[list(game.present)] = of_present
    return shares


def remembered(value: Value) -> Value:
    """The same game, each coalition valued once."""
    known: dict[int, Floats] = {}

    def recall(coalitions: Coalitions) -> Floats:
        new = list(dict.fromkeys(c for c in coalitions if c not in known))
        if new:
            known.update(zip(new, value(new), strict=True))
        return np.stack([known[coalition] for coalition in coalitions])

    return recall

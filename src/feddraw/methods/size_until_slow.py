"""Size while training is fast, equal weights once it is slow: progress is measured, in place of a
clock.

The clients' losses at the sent model, averaged by size, must fall by the share `least` from one
round to the next. The first time they do not, all clients count the same from that round on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feddraw.core import (
    LOSS,
    AfterFirstSum,
    ClientView,
    Column,
    Facts,
    Method,
    Needs,
    Parts,
    Score,
    State,
    Weighted,
)
from feddraw.errors import below_one


@dataclass(frozen=True)
class SizeUntilSlow(AfterFirstSum):
    least: float = 0.05

    needs = Needs(sizes=True, asks=(LOSS,))

    def init(self) -> State:
        return {"loss": -1.0, "slow": 0}  # no loss yet

    def contribute(self, client: ClientView, facts: Facts, place: int) -> Column:
        return np.array([facts.priors[place] * client.number("loss")])

    def conclude(
        self, total: Column, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Column, Parts, State]:
        loss = float(total[0] / facts.priors[list(places)].sum())
        before = state["loss"]
        fell = before < 0 or loss <= (1 - self.least) * before
        slow = int(state["slow"] or not fell)
        return np.array([float(slow)]), {}, {"loss": loss, "slow": slow}

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        return self._log_weight(facts, place), {"prior": float(facts.priors[place])}

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        log_weight = self._log_weight(facts, place)
        return log_weight, log_weight

    def _log_weight(self, facts: Facts, place: int) -> float:
        return 0.0 if facts.told[0] else math.log(facts.sizes[place])

    def parts_of(self, own: Column, facts: Facts, places: Sequence[int]) -> Parts:
        return {"prior": facts.priors[list(places)]}


def size_until_slow(least: float = 0.05) -> Method:
    """By size until the loss falls slowly, then equal weights."""
    return Method(Weighted(SizeUntilSlow(below_one("least", least))))

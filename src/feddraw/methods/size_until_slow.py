"""Size while training is fast, equal weights once it is slow: progress is measured, in place of a
clock.

The clients' losses at the sent model, averaged by size, must fall by the share `least` from one
round to the next. The first time they do not, all clients count the same from that round on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feddraw.core import (
    TWO_SUMS,
    Cohort,
    Facts,
    Local,
    Method,
    Parts,
    Server,
    State,
    Weighting,
    Weights,
    normalize,
)
from feddraw.core.schedules import Floats, size_prior
from feddraw.errors import below_one


@dataclass(frozen=True)
class SizeUntilSlow(Weighting):
    least: float = 0.05

    asks = ("loss",)
    secure = TWO_SUMS

    def init(self) -> State:
        return {"loss": -1.0, "slow": 0}  # no loss yet

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        prior = size_prior(cohort.sizes)
        state = self._state_after(float(prior @ cohort.number("loss")), state)
        weights = (
            normalize(np.ones(len(prior)), prior=prior)
            if state["slow"]
            else Weights(prior, {"prior": prior})
        )
        return weights, state

    def _state_after(self, loss: float, state: State) -> State:
        before = state["loss"]
        return {
            "loss": loss,
            "slow": int(state["slow"] or (before >= 0 and not loss <= (1 - self.least) * before)),
        }

    def first_sum(self, cohort: Cohort, facts: Facts, place: int) -> Floats:
        return np.asarray(facts.priors[place] * cohort.number("loss"))

    def inform(
        self, total: Floats, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Floats, Parts, State]:
        state = self._state_after(float(total[0] / facts.priors[list(places)].sum()), state)
        return np.array([float(state["slow"])]), {}, state

    def own_weight(self, cohort: Cohort, facts: Facts, place: int) -> float:
        return self.own_limits(facts, place)[0]

    def own_limits(self, facts: Facts, place: int) -> tuple[float, float]:
        own = 1.0 if facts.told[0] else float(facts.sizes[place] / facts.sizes.max())
        return own, own

    def parts_of(self, own: Floats, facts: Facts, places: Sequence[int]) -> Parts:
        return {"prior": facts.priors[list(places)]}


def size_until_slow(least: float = 0.05) -> Method:
    """By size until the loss falls slowly, then equal weights."""
    return Method(Local(), SizeUntilSlow(below_one("least", least)), Server())

"""Fixed weights in proportion to size to a power: 1 is FedAvg, 0 uniform averaging, below 0 small
clients count more.

A control: the best power, known afterwards, says how much a rule that weighs by size alone could
have gained at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from feddraw.core import (
    ONE_SUM,
    Cohort,
    Facts,
    Local,
    Method,
    Parts,
    Server,
    State,
    Weighting,
    Weights,
)
from feddraw.core.schedules import Floats, size_prior
from feddraw.errors import UserError

STEEPEST_POWER = 10.0  # of powers: beyond it a single client has all the weight


def shares_by_power(sizes: Floats, power: float) -> Floats:
    """n to a power, normalised; the largest size is 1 before, so that no power overflows."""
    return size_prior((sizes / sizes.max()) ** power)


@dataclass(frozen=True)
class PowerOfSize(Weighting):
    power: float = 0.5

    secure = ONE_SUM
    streams = True

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        return Weights(
            shares_by_power(cohort.sizes, self.power), {"prior": size_prior(cohort.sizes)}
        ), state

    def score(self, cohort: Cohort, prior: float) -> tuple[float, Mapping[str, float]]:
        return self.power * math.log(prior), {"prior": prior}

    def score_range(self, prior: float, facts: Facts) -> tuple[float, float]:
        return self.power * math.log(prior), self.power * math.log(prior)

    def parts_of(self, own: Floats, facts: Facts, places: Sequence[int]) -> Parts:
        return {"prior": facts.priors[list(places)]}


def size_power(power: float = 0.5) -> Method:
    """By size to a power: 1 is FedAvg, 0 equal weights."""
    if not abs(power) <= STEEPEST_POWER:
        raise UserError(
            f"power must be from -{STEEPEST_POWER:g} to {STEEPEST_POWER:g}, not {power}"
        )
    return Method(Local(), PowerOfSize(power), Server())

"""Fixed weights in proportion to size to a power.

1 is FedAvg, 0 uniform averaging, and below 0 small clients count more. A control: the best power,
known afterwards, says how much a rule that weighs by size alone could have gained at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from feddraw.core import ClientView, Column, Facts, Method, Parts, Score, SelfScored, Weighted
from feddraw.errors import UserError

STEEPEST_POWER = 10.0  # beyond it a single client has all the weight


@dataclass(frozen=True)
class PowerOfSize(SelfScored):
    power: float = 0.5

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        log_weight = self.power * math.log(facts.sizes[place])
        return log_weight, {"prior": float(facts.priors[place])}

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        log_weight = self.power * math.log(facts.sizes[place])
        return log_weight, log_weight

    def parts_of(self, own_weights: Column, facts: Facts, places: Sequence[int]) -> Parts:
        return {"prior": facts.priors[list(places)]}


def size_power(power: float = 0.5) -> Method:
    """By size to a power: 1 is FedAvg, 0 equal weights."""
    if not abs(power) <= STEEPEST_POWER:
        limit = f"{STEEPEST_POWER:g}"
        raise UserError(f"power must be from -{limit} to {limit}, not {power}")
    return Method(Weighted(PowerOfSize(power)))

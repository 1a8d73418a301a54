"""Size at first, then equal weights. A control: FedDRAW without similarity and schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass

from feddraw.core import ClientView, Facts, Method, Score, SelfScored, Weighted
from feddraw.errors import not_negative


@dataclass(frozen=True)
class SizeThenUniform(SelfScored):
    until: int = 1

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        return self._log_weight(facts, place), {}

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        log_weight = self._log_weight(facts, place)
        return log_weight, log_weight

    def _log_weight(self, facts: Facts, place: int) -> float:
        return math.log(facts.sizes[place]) if facts.round < self.until else 0.0


def size_then_uniform(until: int = 1) -> Method:
    """By size before round `until`, equal weights from then on."""
    return Method(Weighted(SizeThenUniform(not_negative("until", until))))

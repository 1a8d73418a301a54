"""Size at first, then equal weights: what is left of FedDRAW without similarity and without a
schedule. A control.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from feddraw.core import (
    ONE_SUM,
    Cohort,
    Facts,
    Local,
    Method,
    Server,
    State,
    Weighting,
    Weights,
    normalize,
)
from feddraw.errors import not_negative


@dataclass(frozen=True)
class SizeThenUniform(Weighting):
    until: int = 1

    secure = ONE_SUM
    streams = True

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        return normalize(
            cohort.sizes if cohort.round < self.until else np.ones(len(cohort.updates))
        ), state

    def score(self, cohort: Cohort, prior: float) -> tuple[float, Mapping[str, float]]:
        return math.log(prior) if cohort.round < self.until else 0.0, {}

    def score_range(self, prior: float, facts: Facts) -> tuple[float, float]:
        return (math.log(prior), math.log(prior)) if facts.round < self.until else (0.0, 0.0)


def size_then_uniform(until: int = 1) -> Method:
    """By size before round `until`, equal weights from then on."""
    return Method(Local(), SizeThenUniform(not_negative("until", until)), Server())

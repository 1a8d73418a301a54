"""Inverse steps: a client counts less the more it has trained.

A control for rules that reward small moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True)
class InverseSteps(Weighting):
    needs = "steps"
    secure = ONE_SUM
    streams = True

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        return normalize(1 / cohort.steps), state

    def score(self, cohort: Cohort, prior: float) -> tuple[float, Mapping[str, float]]:
        return -math.log(cohort.steps[0]), {}

    def score_range(self, prior: float, facts: Facts) -> tuple[float, float]:
        return -math.inf, 0.0  # of one step


def inverse_steps() -> Method:
    """Weights are inverse numbers of steps."""
    return Method(Local(), InverseSteps(), Server())

"""Uniform averaging: every client counts the same. The control that FedDRAW anneals to."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Uniform(Weighting):
    needs = "nothing"
    secure = ONE_SUM
    streams = True
    common = True
    even = True

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        return normalize(np.ones(len(cohort.updates))), state

    def score(self, cohort: Cohort, prior: float) -> tuple[float, Mapping[str, float]]:
        return 0.0, {}

    def score_range(self, prior: float, facts: Facts) -> tuple[float, float]:
        return 0.0, 0.0


def uniform() -> Method:
    """The plain average of the clients."""
    return Method(Local(), Uniform(), Server())

"""IDA: a client counts less the farther its model lies from the mean model. (Yeganeh et al., DCL at
MICCAI 2020)

w is proportional to 1 / (|y - mean of y|_1 + 1e-5) over parameters. `times` multiplies by the
client's size, or by INTRAC, 1 / max(1/K, training accuracy), which favours clients that still do
badly. No code of the authors is public: this follows the paper's formulas. With two clients
distances are equal, and so are the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from feddraw.core import (
    Cohort,
    Column,
    Local,
    Method,
    Server,
    State,
    Weighting,
    Weights,
    normalize,
    not_secure,
)
from feddraw.errors import one_of

Times = Literal["nothing", "size", "intrac"]


@dataclass(frozen=True)
class IdaWeighting(Weighting):
    needs = "all parameters"
    cost = "O(K d)"
    secure = not_secure("distances to the mean model need every client's parameters")

    def factor(self, cohort: Cohort) -> Column:
        return np.ones(len(cohort.updates))

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        mean = cohort.params.mean(axis=0)
        distances = np.array(
            [np.abs(params - mean).sum(dtype=np.float64) for params in cohort.params]
        )
        return normalize(self.factor(cohort) / (distances + 1e-5)), state


@dataclass(frozen=True)
class IdaBySize(IdaWeighting):
    needs = "sizes, all parameters"

    def factor(self, cohort: Cohort) -> Column:
        return cohort.sizes


@dataclass(frozen=True)
class IdaIntrac(IdaWeighting):
    asks = ("accuracy",)

    def factor(self, cohort: Cohort) -> Column:
        return 1 / np.maximum(1 / len(cohort.updates), cohort.number("accuracy"))


def ida(times: Times = "nothing") -> Method:
    """Weights fall with the distance to the mean model."""
    rules = {"nothing": IdaWeighting, "size": IdaBySize, "intrac": IdaIntrac}
    return Method(Local(), rules[one_of("times", times, tuple(rules))](), Server())

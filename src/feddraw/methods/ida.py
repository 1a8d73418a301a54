"""IDA: a client counts less the farther its model lies from the mean model. (Yeganeh et al., DCL at
MICCAI 2020)

w is proportional to 1 / (|y - mean of y|_1 + 1e-5) over parameters. `times` multiplies by the
client's size, or by INTRAC, 1 / max(1/K, training accuracy), which favours clients that still do
badly. No code of the authors is public: this follows the paper's formulas. With two clients
distances are equal, and so are the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from feddraw.core import (
    ACCURACY,
    Cohort,
    Column,
    Method,
    Needs,
    State,
    Weighted,
    Weighting,
    Weights,
    normalize,
)
from feddraw.errors import one_of

Times = Literal["nothing", "size", "intrac"]


@dataclass(frozen=True)
class IdaWeighting(Weighting):
    times: Times = "nothing"

    @property
    def needs(self) -> Needs:
        return Needs(
            sizes=self.times == "size",
            layers="all",
            asks=(ACCURACY,) if self.times == "intrac" else (),
            cost="O(K d)",
        )

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        mean = cohort.params.mean(axis=0)
        distances = np.array(
            [np.abs(params - mean).sum(dtype=np.float64) for params in cohort.params]
        )
        return normalize(self._factors(cohort) / (distances + 1e-5)), state

    def _factors(self, cohort: Cohort) -> Column:
        if self.times == "size":
            return cohort.sizes
        if self.times == "intrac":
            return 1 / np.maximum(1 / len(cohort.updates), cohort.number("accuracy"))
        return np.ones(len(cohort.updates))


def ida(times: Times = "nothing") -> Method:
    """Weights fall with the distance to the mean model."""
    return Method(Weighted(IdaWeighting(one_of("times", times, get_args(Times)))))

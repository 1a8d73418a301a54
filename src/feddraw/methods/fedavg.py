"""FedAvg: a client counts by its number of images. (McMahan et al., AISTATS 2017)"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from feddraw.core import (
    ONE_SUM,
    Cohort,
    Column,
    Facts,
    Local,
    Method,
    Parts,
    Server,
    State,
    Weighting,
    Weights,
)
from feddraw.core.schedules import size_prior


@dataclass(frozen=True)
class BySize(Weighting):
    secure = ONE_SUM
    streams = True
    common = True

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        prior = size_prior(cohort.sizes)
        return Weights(prior, {"prior": prior}), state

    def score(self, cohort: Cohort, prior: float) -> tuple[float, Mapping[str, float]]:
        return math.log(prior), {"prior": prior}

    def score_range(self, prior: float, facts: Facts) -> tuple[float, float]:
        return math.log(prior), math.log(prior)

    def parts_of(self, own: Column, facts: Facts, places: Sequence[int]) -> Parts:
        return {"prior": facts.priors[list(places)]}


def fedavg() -> Method:
    """The average weighted by size."""
    return Method(Local(), BySize(), Server())

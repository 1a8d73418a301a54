"""FedAvg: a client counts by its number of images. (McMahan et al., AISTATS 2017)"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from feddraw.core import Cohort, Local, Method, Server, State, Weighting, Weights
from feddraw.schedules import size_prior


@dataclass(frozen=True)
class BySize(Weighting):
    streams = True
    common = True

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        prior = size_prior(cohort.sizes)
        return Weights(prior, {"prior": prior}), state

    def score(self, cohort: Cohort, prior: float) -> tuple[float, Mapping[str, float]]:
        return math.log(prior), {"prior": prior}


def fedavg() -> Method:
    """The average weighted by size."""
    return Method(Local(), BySize(), Server())

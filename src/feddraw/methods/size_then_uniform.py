"""Size at first, then equal weights: what is left of FedDRAW without similarity and without a schedule. A control."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import Cohort, Local, Method, Server, State, Weighting, Weights, normalize
from feddraw.errors import not_negative


@dataclass(frozen=True)
class SizeThenUniform(Weighting):
    until: int = 1

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        return normalize(cohort.sizes if cohort.round < self.until else np.ones(len(cohort.updates))), state


def size_then_uniform(until: int = 1) -> Method:
    """By size before round `until`, equal weights from then on."""
    not_negative("until", until)
    return Method(Local(), SizeThenUniform(until), Server())

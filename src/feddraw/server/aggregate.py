"""What a method's rules make of the updates of a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import Column, Model, State, Weights


@dataclass(frozen=True, eq=False)
class Aggregate:
    """What a method's rules make of a cohort."""

    model: Model
    weights: Weights
    coefficients: Column  # how much each client's move counts, for the ledger
    state: State

    @property
    def finite(self) -> bool:
        """Whether every number of the new model is one."""
        model = self.model
        return bool(np.isfinite(model.params).all() and np.isfinite(model.buffers).all())

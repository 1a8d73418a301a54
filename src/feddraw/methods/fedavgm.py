"""FedAvgM: the server keeps a momentum of the average move. (Hsu et al., 2019)

v <- momentum · v + average move, x <- x + lr · v. Momentum 0 with lr 1 is FedAvg. Batch-norm
statistics are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import (
    ONE_SUM,
    Cohort,
    Column,
    Local,
    Method,
    Model,
    Server,
    State,
    Vector,
    Weights,
)
from feddraw.errors import below_one, positive
from feddraw.methods.fedavg import BySize


@dataclass(frozen=True)
class MomentumServer(Server):
    momentum: float = 0.9
    lr: float = 1.0

    secure = ONE_SUM

    def init(self, model: Model) -> State:
        return {"velocity": np.zeros_like(model.params)}

    def coefficients(self, cohort: Cohort, weights: Weights) -> Column:
        return self.lr * weights.values

    def step(self, cohort: Cohort, weights: Weights, state: State) -> tuple[Vector, State]:
        x = cohort.model.params
        velocity = (
            self.momentum * state["velocity"] + cohort.combine(weights.values, weights.segments) - x
        )
        return x + self.lr * velocity, {"velocity": velocity}


def fedavgm(momentum: float = 0.9, server_lr: float = 1.0) -> Method:
    """FedAvg with momentum at the server."""
    server = MomentumServer(below_one("momentum", momentum), positive("server_lr", server_lr))
    return Method(Local(), BySize(), server)

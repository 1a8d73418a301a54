"""FedAdam: the average move is a gradient for Adam at the server. (Reddi et al., ICLR 2021)

m <- beta1 m + (1 - beta1) D, v <- beta2 v + (1 - beta2) D², x <- x + lr m / (sqrt(v) + tau), v =
tau² at first and no bias correction, as in the paper. Batch-norm statistics are averaged: an
adaptive step could make a variance negative.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import ONE_SUM, Cohort, Local, Method, Model, Server, State, Vector, Weights
from feddraw.errors import below_one, positive
from feddraw.methods.fedavg import BySize


@dataclass(frozen=True)
class AdaptiveServer(Server):
    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    linear = False
    secure = ONE_SUM

    def init(self, model: Model) -> State:
        return {
            "mean": np.zeros_like(model.params),
            "square": np.full_like(model.params, self.tau**2),
        }

    def square(self, before: Vector, move: Vector) -> Vector:
        """The next second moment."""
        return self.beta2 * before + (1 - self.beta2) * move**2

    def step(self, cohort: Cohort, weights: Weights, state: State) -> tuple[Vector, State]:
        x = cohort.model.params
        move = cohort.combine(weights.values, weights.segments) - x
        mean = self.beta1 * state["mean"] + (1 - self.beta1) * move
        square = self.square(state["square"], move)
        return x + self.lr * mean / (np.sqrt(square) + self.tau), {"mean": mean, "square": square}


def with_adaptive_server(
    rule: type[AdaptiveServer], lr: float, beta1: float, beta2: float, tau: float
) -> Method:
    """FedAvg with one of the adaptive servers."""
    betas = below_one("beta1", beta1), below_one("beta2", beta2)
    return Method(Local(), BySize(), rule(positive("server_lr", lr), *betas, positive("tau", tau)))


def fedadam(
    server_lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> Method:
    """FedAvg with Adam at the server."""
    return with_adaptive_server(AdaptiveServer, server_lr, beta1, beta2, tau)

"""FedAvgM: the server keeps a momentum of the average move. (Hsu et al., 2019)

v <- momentum · v + average move, x <- x + lr · v. Momentum 0 with lr 1 is FedAvg. Batch-norm
statistics are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import BySize, Column, Method, Model, Server, State, Sums, Vector, Weighted
from feddraw.errors import below_one, positive


@dataclass(frozen=True)
class MomentumServer(Server):
    momentum: float = 0.9
    lr: float = 1.0

    def init(self, model: Model) -> State:
        return {"velocity": np.zeros_like(model.params)}

    def step(self, sums: Sums, state: State) -> tuple[Vector, State]:
        sent = sums.cohort.sent.params
        velocity = self.momentum * state["velocity"] + sums.total - sent
        return sent + self.lr * velocity, {"velocity": velocity}

    def coefficients_in_ledger(self, sums: Sums) -> Column:
        """A step of `lr` scales every client's move, and the ledger's `weight` with it."""
        return self.lr * sums.coefficients


def fedavgm(momentum: float = 0.9, server_lr: float = 1.0) -> Method:
    """FedAvg with momentum at the server."""
    server = MomentumServer(below_one("momentum", momentum), positive("server_lr", server_lr))
    return Method(Weighted(BySize(), server))

"""FedYogi: as FedAdam, but the second moment changes by no more than a fixed share.

(Reddi et al., ICLR 2021.) v <- v - (1 - beta2) D² sign(v - D²).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from feddraw.core import BySize, Method, Model, Server, State, Sums, Vector, Weighted
from feddraw.methods.fedadam import AdaptiveSettings


@dataclass(frozen=True)
class YogiServer(Server):
    settings: AdaptiveSettings = field(default_factory=AdaptiveSettings)

    def init(self, model: Model) -> State:
        return self.settings.initial_moments(model)

    def step(self, sums: Sums, state: State) -> tuple[Vector, State]:
        before = state["square"]
        squared_move = sums.move() ** 2
        toward = np.sign(before - squared_move)
        square = before - (1 - self.settings.beta2) * squared_move * toward
        return self.settings.step(sums, state["mean"], square)


def fedyogi(
    server_lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> Method:
    """FedAvg with Yogi at the server."""
    settings = AdaptiveSettings.checked(server_lr, beta1, beta2, tau)
    return Method(Weighted(BySize(), YogiServer(settings)))

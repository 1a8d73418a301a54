"""FedAdagrad: the average move is a gradient for Adagrad at the server. (Reddi et al., ICLR 2021)

v <- v + D², x <- x + lr m / (sqrt(v) + tau); m is the move itself unless beta1 is set.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from feddraw.core import BySize, Method, Model, Server, State, Sums, Vector, Weighted
from feddraw.methods.fedadam import AdaptiveSettings


@dataclass(frozen=True)
class AdagradServer(Server):
    settings: AdaptiveSettings = field(default_factory=AdaptiveSettings)

    def init(self, model: Model) -> State:
        return self.settings.initial_moments(model)

    def step(self, sums: Sums, state: State) -> tuple[Vector, State]:
        square = state["square"] + sums.move() ** 2
        return self.settings.step(sums, state["mean"], square)


def fedadagrad(server_lr: float = 0.01, beta1: float = 0.0, tau: float = 1e-3) -> Method:
    """FedAvg with Adagrad at the server."""
    settings = AdaptiveSettings.checked(server_lr, beta1, 0.0, tau)
    return Method(Weighted(BySize(), AdagradServer(settings)))

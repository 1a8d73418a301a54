"""FedAdam: the average move is a gradient for Adam at the server. (Reddi et al., ICLR 2021)

m <- beta1 m + (1 - beta1) D, v <- beta2 v + (1 - beta2) D², x <- x + lr m / (sqrt(v) + tau),
v = tau² at first and no bias correction, as in the paper. Batch-norm statistics are averaged: an
adaptive step could make a variance negative.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from feddraw.core import BySize, Method, Model, Server, State, Sums, Vector, Weighted
from feddraw.errors import below_one, positive


@dataclass(frozen=True)
class AdaptiveSettings:
    """What FedAdam, FedYogi and FedAdagrad share."""

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    @staticmethod
    def checked(lr: float, beta1: float, beta2: float, tau: float) -> AdaptiveSettings:
        """Refuse settings that the formulas do not allow."""
        return AdaptiveSettings(
            lr=positive("server_lr", lr),
            beta1=below_one("beta1", beta1),
            beta2=below_one("beta2", beta2),
            tau=positive("tau", tau),
        )

    def initial_moments(self, model: Model) -> State:
        """The moments before the first round."""
        mean = np.zeros_like(model.params)
        return {"mean": mean, "square": np.full_like(model.params, self.tau**2)}

    def step(self, sums: Sums, mean: Vector, square: Vector) -> tuple[Vector, State]:
        """The next parameters from the last first moment and the new second one."""
        mean = self.beta1 * mean + (1 - self.beta1) * sums.move()
        params = sums.cohort.sent.params + self.lr * mean / (np.sqrt(square) + self.tau)
        return params, {"mean": mean, "square": square}


@dataclass(frozen=True)
class AdamServer(Server):
    settings: AdaptiveSettings = field(default_factory=AdaptiveSettings)

    def init(self, model: Model) -> State:
        return self.settings.initial_moments(model)

    def step(self, sums: Sums, state: State) -> tuple[Vector, State]:
        beta2 = self.settings.beta2
        square = beta2 * state["square"] + (1 - beta2) * sums.move() ** 2
        return self.settings.step(sums, state["mean"], square)


def fedadam(
    server_lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> Method:
    """FedAvg with Adam at the server."""
    settings = AdaptiveSettings.checked(server_lr, beta1, beta2, tau)
    return Method(Weighted(BySize(), AdamServer(settings)))

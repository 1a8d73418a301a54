"""FedDyn: terms in each client's loss make all clients share one stationary point. (Acar et al.,
ICLR 2021)

Client: F(w) - <lam_i, w> + alpha/2 |w - x|², then lam_i <- lam_i - alpha (w - x). Server: h <- h -
alpha/K · sum of the moves, x <- mean of the clients - h/alpha. So h is the mean of all clients'
lam_i, and it is zero at the end.

From the paper: uniform weights. Ours: other weights (`feddraw+feddyn`), where h is the mean by the
clients' shares (see `standing_shares`), so that training comes to rest where the sum of the losses
by these shares is smallest; the row of a finding that not all clients label has shares of its own.
It costs one more vector as large as the model on the way up, lam_i before the round; uniform
weights do without it.

A client remembers its whole move, so `gate.clip` is refused: the server would take the shortened
move into h, h would no longer be the mean, and training would rest elsewhere.

The terms are written into the loss, never into weight decay, because that trick does not survive an
adaptive optimiser. alpha -> 0 is not FedAvg: the server's correction does not vanish.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from feddraw.core import (
    Client,
    Column,
    Correction,
    Equal,
    Job,
    Local,
    Memory,
    Method,
    Model,
    StandingMean,
    State,
    Sums,
    Update,
    Vector,
    Weighted,
    standing_shares,
)
from feddraw.errors import one_of, positive

Shown = Literal["sent", "mean"]


@dataclass(frozen=True)
class DynamicallyRegularized(Local):
    alpha: float = 0.01

    keeps = {"gradient": "params"}
    held = "gradient"

    def begin(self, job: Job, memory: Memory, client: Client) -> Correction:
        linear = -memory["gradient"] if "gradient" in memory else None
        return Correction(linear=linear, pull=self.alpha)

    def end(
        self, job: Job, update: Update, memory: Memory, client: Client
    ) -> tuple[dict[str, Vector], Memory]:
        before = memory.get("gradient", 0.0)
        return {}, {"gradient": before - self.alpha * (update.model.params - job.model.params)}


@dataclass(frozen=True)
class FedDynServer(StandingMean):
    alpha: float = 0.01
    show: Shown = "sent"  # evaluate the model that is sent next, or the mean of the clients

    averages = "moves"

    def init(self, model: Model) -> State:
        return {"h": np.zeros_like(model.params)} | standing_shares.initial_shares()

    def step(self, sums: Sums, state: State) -> tuple[Vector, State]:
        def change(by: Column, span: slice) -> Vector:
            return -self.alpha * sums.moved_by(by, span)

        h, standing = standing_shares.update_standing_mean(state["h"], state, sums, change)
        return sums.total - h / self.alpha, {"h": h} | standing

    def coefficients_in_ledger(self, sums: Sums) -> Column:
        """With what a move adds to h, if those present stand for as much as the others do."""
        present = len(sums.cohort.updates) / sums.cohort.population
        return sums.coefficients * (1 + present)

    def shown(self, model: Model, state: State) -> Model:
        if self.show == "mean":
            return replace(model, params=model.params + state["h"] / self.alpha)
        return model


def feddyn(alpha: float = 0.01, show: Shown = "sent") -> Method:
    """A linear and a quadratic term at the client, their mirror image at the server."""
    positive("alpha", alpha)
    one_of("show", show, ("sent", "mean"))
    server = FedDynServer(alpha, show)
    return Method(Weighted(Equal(), server), DynamicallyRegularized(alpha))

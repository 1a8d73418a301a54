"""FedNova: each client's move is divided by the progress its steps could make. (Wang et al.,
NeurIPS 2020)

x <- x + (sum_j p_j a_j) · sum_i p_i D_i / a_i, where a_i is the l1 norm of the solver's
accumulation vector. For SGD it is the number of steps; momentum and a proximal term have closed
forms. None is published for Adam: we count steps there, which is exact for constant gradients. With
equal epochs steps are proportional to size, and FedNova is then uniform averaging with a longer
server step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import (
    MOST_STEPS,
    BySize,
    Client,
    ClientView,
    Extra,
    Factored,
    Job,
    Memory,
    Method,
    Solver,
    Update,
    Vector,
    Weighted,
)
from feddraw.errors import UserError, not_negative
from feddraw.methods.fedprox import Proximal

# One step has the progress 1; a proximal term of nearly 2 / lr leaves half of it after two steps.
PROGRESS = Extra(
    "progress",
    "number",
    0.5,
    100.0 * MOST_STEPS,
    meaning="with plain SGD its number of optimiser steps",
)


def accumulation(steps: int, momentum: float = 0.0, decay: float = 0.0) -> float:
    """|a|_1 after some steps of SGD with momentum, or with a proximal term (decay = lr · mu)."""
    if momentum:
        return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    return (1 - (1 - decay) ** steps) / decay if decay else float(steps)


@dataclass(frozen=True)
class FedNovaClient(Proximal):
    """A client that tells how far its solver could have gone."""

    mu: float = 0.0

    @property
    def sends(self) -> tuple[Extra, ...]:
        return (PROGRESS,)

    def check(self, solver: Solver) -> None:
        if solver.optimizer == "sgd" and solver.momentum and self.mu:
            raise UserError(
                "FedNova knows no normaliser for momentum and a proximal term together: set one of"
                " them to 0"
            )

    def end(
        self, job: Job, update: Update, memory: Memory, client: Client
    ) -> tuple[dict[str, Vector], Memory]:
        solver = client.solver
        if solver.optimizer == "sgd":
            progress = accumulation(update.known_steps, solver.momentum, solver.lr * self.mu)
        else:
            progress = accumulation(update.known_steps)
        return {"progress": np.array([progress], np.float32)}, {}


@dataclass(frozen=True)
class FedNovaServer(Factored):
    def factor(self, client: ClientView) -> float:
        return 1 / client.number("progress")

    def term(self, client: ClientView) -> float:
        return client.number("progress")

    def scale_by(self, mean_term: float) -> float:
        return mean_term


def fednova(mu: float = 0.0) -> Method:
    """The average of moves per step, made as long as the mean move."""
    local = FedNovaClient(not_negative("mu", mu))
    return Method(Weighted(BySize(), FedNovaServer()), local)

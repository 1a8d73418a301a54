"""AFL: weights climb towards the clients with the highest loss. (Mohri et al., ICML 2019)

lambda <- the nearest point of the simplex to lambda + rate · losses at the sent model, from equal
weights on; a round uses the lambda of before. Clients' moves stand in for gradients. The paper's
model is the mean over the rounds (`show = "mean"`); batch-norm statistics belong to one round's
model, so by default the last is shown.

lambda covers all clients from the first round on, present or not. The loss of an absent client is
unknown: we take the mean of those present for it, so nobody gains or loses by being away. A client
that joins later starts at 1/K.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from feddraw.core import (
    LOSS,
    Cohort,
    Method,
    Model,
    Needs,
    Server,
    State,
    Sums,
    Vector,
    Weighted,
    Weighting,
    Weights,
    normalize,
)
from feddraw.core.schedules import Floats
from feddraw.errors import one_of, positive

Shown = Literal["last", "mean"]


def onto_simplex(point: Floats) -> Floats:
    """The nearest vector of non-negative numbers that sum to one."""
    falling = np.sort(point)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, len(point) + 1)
    return np.asarray(np.maximum(0, point - excess[np.flatnonzero(falling > excess)[-1]]))


def shares_of_all(known: Mapping[str, float], population: int) -> Floats:
    """(population,): the share of each client, present or not.

    Those that are new start at 1/K, and the others keep their proportions.
    """
    shares = np.array([known.get(str(client), np.nan) for client in range(population)])
    new = np.isnan(shares)
    return np.where(new, 1 / population, shares * (1 - new.mean()))


@dataclass(frozen=True)
class AgnosticWeighting(Weighting):
    rate: float = 0.1

    needs = Needs(asks=(LOSS,))

    def init(self) -> State:
        return {"lambda": {}}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        losses = np.full(cohort.population, cohort.number("loss").mean())
        losses[list(cohort.clients)] = cohort.number("loss")
        before = shares_of_all(state["lambda"], cohort.population)
        now = before[list(cohort.clients)]
        after = onto_simplex(before + self.rate * losses)
        state = {"lambda": {str(client): value for client, value in enumerate(after.tolist())}}
        return normalize(now if now.any() else np.ones(len(now))), state


@dataclass(frozen=True)
class AgnosticMeanServer(Server):
    """The plain server, which shows the mean of all rounds' models."""

    def init(self, model: Model) -> State:
        return {"mean": np.zeros_like(model.params), "rounds": 0}

    def step(self, sums: Sums, state: State) -> tuple[Vector, State]:
        params = sums.total
        rounds = state["rounds"] + 1
        mean = state["mean"] + (params - state["mean"]) / np.float32(rounds)
        return params, {"mean": mean, "rounds": rounds}

    def shown(self, model: Model, state: State) -> Model:
        return replace(model, params=state["mean"]) if state["rounds"] else model


def afl(rate: float = 0.1, show: Shown = "last") -> Method:
    """Weights rise for the clients with the highest loss."""
    one_of("show", show, ("last", "mean"))
    server = AgnosticMeanServer() if show == "mean" else Server()
    return Method(Weighted(AgnosticWeighting(positive("rate", rate)), server))

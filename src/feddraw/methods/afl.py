"""AFL: weights climb towards the clients with the highest loss. (Mohri et al., ICML 2019)

lambda <- the nearest point of the simplex to lambda + rate · losses at the sent model, from equal weights on; a round
uses the lambda of before. Clients' moves stand in for gradients. The paper's model is the mean over the rounds
(`show = "mean"`); batch-norm statistics belong to one round's model, so by default the last is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from feddraw.core import Cohort, Local, Method, Model, Server, State, Vector, Weighting, Weights, normalize
from feddraw.errors import one_of, positive

Shown = Literal["last", "mean"]


def onto_simplex(point: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest vector of non-negative numbers that sum to one."""
    falling = np.sort(point)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, len(point) + 1)
    return np.asarray(np.maximum(0, point - excess[np.flatnonzero(falling > excess)[-1]]))


@dataclass(frozen=True)
class Agnostic(Weighting):
    rate: float = 0.1

    needs = "nothing"
    asks = ("loss",)

    def init(self) -> State:
        return {"lambda": {}}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        losses = dict(zip(map(str, cohort.clients), cohort.number("loss"), strict=True))
        before = dict.fromkeys(losses, 1 / cohort.population) | state["lambda"]
        after = onto_simplex(np.array([value + self.rate * losses.get(c, 0.0) for c, value in before.items()]))
        now = np.array([before[client] for client in losses])
        state = {"lambda": dict(zip(before, after.tolist(), strict=True))}
        return normalize(now if now.any() else np.ones(len(now))), state


@dataclass(frozen=True)
class RunningMean(Server):
    """The plain server, which shows the mean of all rounds' models."""

    def init(self, model: Model) -> State:
        return {"mean": np.zeros_like(model.params), "rounds": 0}

    def step(self, cohort: Cohort, weights: Weights, state: State) -> tuple[Vector, State]:
        params, _ = super().step(cohort, weights, state)
        rounds = state["rounds"] + 1
        return params, {"mean": state["mean"] + (params - state["mean"]) / np.float32(rounds), "rounds": rounds}

    def shown(self, model: Model, state: State) -> Model:
        return replace(model, params=state["mean"]) if state["rounds"] else model


def afl(rate: float = 0.1, show: Shown = "last") -> Method:
    """Weights climb towards the worst-off clients."""
    server = RunningMean() if one_of("show", show, ("last", "mean")) == "mean" else Server()
    return Method(Local(), Agnostic(positive("rate", rate)), server)

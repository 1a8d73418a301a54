"""FedEBA+, its aggregation: clients that the sent model serves badly count more.

(Wang et al., 2024.) w is proportional to q exp(F / temperature), F the client's loss at the sent
model, q equal or by size: the weights of largest entropy for a given mean loss. The paper's
alignment of models and gradients is not part of it here, and no code is public. A high temperature
is uniform averaging. The default temperature is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from feddraw.core import (
    LOSS,
    AfterFirstSum,
    ClientView,
    Column,
    Facts,
    Method,
    Needs,
    Parts,
    Score,
    State,
    Weighted,
)
from feddraw.errors import one_of, positive

Start = Literal["uniform", "size"]

HIGHEST_EXCESS = 100.0  # temperatures above the mean loss: exp of more would not fit a sum


@dataclass(frozen=True)
class FedEbaWeighting(AfterFirstSum):
    temperature: float = 0.1
    start: Start = "uniform"

    needs = Needs(sizes=True, asks=(LOSS,))
    reveals = "its loss at any model that it is sent"

    def contribute(self, client: ClientView, facts: Facts, place: int) -> Column:
        return np.array([client.number("loss")])

    def conclude(
        self, total: Column, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Column, Parts, State]:
        mean_loss = total / len(places)
        return mean_loss, {}, state

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        loss = client.number("loss")
        excess = min(HIGHEST_EXCESS, (loss - float(facts.concluded[0])) / self.temperature)
        prior = float(self._priors(facts)[place])
        return excess + math.log(prior), {"prior": prior, "reputation": loss}

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        return -math.inf, HIGHEST_EXCESS + math.log(self._priors(facts)[place])

    def reference(self, facts: Facts) -> float:
        """A client with the mean loss and the largest prior has the weight one."""
        return math.log(self._priors(facts).max())

    def _priors(self, facts: Facts) -> Column:
        if self.start == "size":
            return facts.priors
        return np.full(len(facts.sizes), 1 / len(facts.sizes))


def fedeba(temperature: float = 0.1, start: Start = "uniform") -> Method:
    """Weights rise with the loss at the sent model."""
    one_of("start", start, ("uniform", "size"))
    return Method(Weighted(FedEbaWeighting(positive("temperature", temperature), start)))

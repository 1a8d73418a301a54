"""FedCav: weights are a softmax of the losses at the sent model, each at most their mean.

(Zeng et al., ICPP 2021.) This is the clipped version that the authors' code runs; their detection
of attacks is not part of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class FedCavWeighting(AfterFirstSum):
    needs = Needs(asks=(LOSS,))
    reveals = "its loss at any model that it is sent"

    def contribute(self, client: ClientView, facts: Facts, place: int) -> Column:
        return np.array([client.number("loss")])

    def conclude(
        self, total: Column, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Column, Parts, State]:
        mean_loss = total / len(places)
        return mean_loss, {}, state

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        mean_loss = float(facts.concluded[0])
        clipped = min(client.number("loss"), mean_loss)
        return clipped - mean_loss, {"reputation": clipped}

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        return -math.inf, 0.0


def fedcav() -> Method:
    """Weights rise with the loss at the sent model, up to the mean."""
    return Method(Weighted(FedCavWeighting()))

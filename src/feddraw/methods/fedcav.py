"""FedCav: weights are a softmax of the losses at the sent model, each at most their mean. (Zeng et
al., ICPP 2021)

This is the clipped version that the authors' code runs; their detection of attacks is not part of
it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feddraw.core import (
    TWO_SUMS,
    Cohort,
    Column,
    Facts,
    Local,
    Method,
    Parts,
    Server,
    State,
    Weighting,
    Weights,
)
from feddraw.core.schedules import softmax


@dataclass(frozen=True)
class WeighsAgainstMeanLoss(Weighting):
    """A rule whose secure clients compare their loss with the mean, which the first sum gives."""

    asks = ("loss",)
    secure = TWO_SUMS

    def first_sum(self, cohort: Cohort, facts: Facts, place: int) -> Column:
        return cohort.number("loss")

    def inform(
        self, total: Column, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Column, Parts, State]:
        return total / len(places), {}, state


@dataclass(frozen=True)
class FedCavWeighting(WeighsAgainstMeanLoss):
    needs = "nothing"

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        losses = cohort.number("loss")
        scores = np.minimum(losses, losses.mean())
        return Weights(softmax(scores, 1.0), {"reputation": scores}), state

    def own_weight(self, cohort: Cohort, facts: Facts, place: int) -> float:
        return math.exp(min(0.0, cohort.number("loss")[0] - facts.told[0]))

    def own_limits(self, facts: Facts, place: int) -> tuple[float, float]:
        return 0.0, 1.0


def fedcav() -> Method:
    """Weights rise with the loss at the sent model, up to the mean."""
    return Method(Local(), FedCavWeighting(), Server())

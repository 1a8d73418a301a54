"""FedCav: weights are a softmax of the losses at the sent model, each at most their mean. (Zeng et al., ICPP 2021)

This is the clipped version that the authors' code runs; their detection of attacks is not part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import Cohort, Local, Method, Server, State, Weighting, Weights
from feddraw.schedules import softmax


@dataclass(frozen=True)
class ClippedLoss(Weighting):
    needs = "nothing"
    asks = ("loss",)

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        losses = cohort.number("loss")
        scores = np.minimum(losses, losses.mean())
        return Weights(softmax(scores, 1.0), {"reputation": scores}), state


def fedcav() -> Method:
    """Weights rise with the loss at the sent model, up to the mean."""
    return Method(Local(), ClippedLoss(), Server())

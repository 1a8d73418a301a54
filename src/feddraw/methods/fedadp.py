"""FedAdp: a client counts more the closer its move points to the common direction. (Wu and Wang,
IEEE TCCN 2021)

Angles are over all parameters, in radians, averaged over the rounds in which the client took part.
We average by the client's own participations, not by the global round. A round with a single client
says nothing about its angle to others and is not remembered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import (
    Cohort,
    Method,
    Needs,
    State,
    Weighted,
    Weighting,
    Weights,
    of_present,
    weighted_sum,
    with_present,
)
from feddraw.core.schedules import Floats, cosine, size_prior, softmax
from feddraw.errors import positive


def gompertz(angle: Floats, alpha: float) -> Floats:
    """The decreasing map from angle to score: about alpha when aligned, about 0 beyond a right
    angle.
    """
    return np.asarray(alpha * (1 - np.exp(-np.exp(-alpha * (angle - 1)))))


@dataclass(frozen=True)
class FedAdpWeighting(Weighting):
    alpha: float = 5.0

    needs = Needs(sizes=True, layers="all", cost="O(K d)")

    def init(self) -> State:
        return {"angle": {}, "rounds": {}}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        prior = size_prior(cohort.sizes)
        moves = cohort.moves
        common = weighted_sum(prior, moves)
        similarity = cosine(moves, common)
        # Where nobody moved, or this client did not, there is no angle to hold against it.
        still = ~common.any() | ~moves.any(axis=1)
        angle = np.where(still, 0.0, np.arccos(similarity))
        rounds = of_present(state["rounds"], cohort, 0).astype(np.int64) + 1
        before = of_present(state["angle"], cohort, 0.0)
        mean_angle = before * (rounds - 1) / rounds + angle / rounds
        scores = gompertz(mean_angle, self.alpha)
        values = softmax(scores + np.log(prior), 1.0)  # proportional to size · exp(score)
        if len(cohort.updates) > 1:
            state = {
                "angle": with_present(state["angle"], cohort, mean_angle.tolist()),
                "rounds": with_present(state["rounds"], cohort, rounds.tolist()),
            }
        parts = {"prior": prior, "similarity": similarity, "reputation": scores}
        return Weights(values, parts), state


def fedadp(alpha: float = 5.0) -> Method:
    """Size times a factor that falls with the angle to the mean move."""
    return Method(Weighted(FedAdpWeighting(positive("alpha", alpha))))

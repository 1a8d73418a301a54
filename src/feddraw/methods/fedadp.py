"""FedAdp: a client counts more the closer its move points to the common direction. (Wu and Wang,
IEEE TCCN 2021)

Angles are over all parameters, in radians, averaged over the rounds in which the client took part.
We average by the client's own participations, not by the global round. A round with a single client
says nothing about its angle to others and is not remembered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import Cohort, Method, Needs, State, Weighted, Weighting, Weights, weighted_sum
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
        angles = dict(zip(map(str, cohort.clients), angle, strict=True))
        counts = {client: state["rounds"].get(client, 0) + 1 for client in angles}
        means = {
            c: state["angle"].get(c, 0.0) * (n - 1) / n + float(angles[c]) / n
            for c, n in counts.items()
        }
        scores = gompertz(np.array(list(means.values())), self.alpha)
        values = softmax(scores + np.log(prior), 1.0)  # proportional to size · exp(score)
        if len(cohort.updates) > 1:
            state = {"angle": state["angle"] | means, "rounds": state["rounds"] | counts}
        parts = {"prior": prior, "similarity": similarity, "reputation": scores}
        return Weights(values, parts), state


def fedadp(alpha: float = 5.0) -> Method:
    """Size times a factor that falls with the angle to the mean move."""
    return Method(Weighted(FedAdpWeighting(positive("alpha", alpha))))

"""GIFAIR-FL: size, corrected towards clients whose loss is above that of more others. (Yue et al.,
2023)

w = p + lambda r, where r counts the clients with a lower loss less those with a higher one; r sums
to zero, so w to one. The paper scales the client's objective by 1 + lambda r / p, which is the same
for one step; we correct the weight. `strength` is lambda as a share of its upper bound min p / (K -
1). Strength 0 is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import LOSS, Cohort, Method, Needs, State, Weighted, Weighting, Weights
from feddraw.core.schedules import size_prior
from feddraw.errors import below_one


@dataclass(frozen=True)
class GifairWeighting(Weighting):
    strength: float = 0.5

    needs = Needs(sizes=True, asks=(LOSS,))

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        prior = size_prior(cohort.sizes)
        losses = cohort.number("loss")
        rank = np.sign(losses[:, None] - losses).sum(axis=1)
        bound = prior.min() / max(1, len(prior) - 1)
        values = prior + self.strength * bound * rank
        return Weights(values, {"prior": prior, "reputation": rank}), state


def gifair(strength: float = 0.5) -> Method:
    """Size, corrected by the rank of the loss."""
    return Method(Weighted(GifairWeighting(below_one("strength", strength))))

"""FedAWA: weights drift to clients whose moves are near the mean and models near the sent one. (Shi
et al., CVPR 2025)

w = softmax(l), l = p at first (shares as logits, so weights begin nearly equal). Each round l takes
one step of Adam against sum w_i |D_i - sum w_j D_j| + sum w_i (1 - cos(y_i, x)), after its weights
were used; the optimiser is new in every round, as in the authors' code, so each logit moves by lr
in the direction that helps. We remember how far each client's logit has moved and add it to its
share among those present, so that a client's first weight does not depend on who came before it.
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
    gram,
    of_present,
    with_present,
)
from feddraw.core.schedules import Floats, cosine, size_prior, softmax
from feddraw.errors import positive


def fedawa_slope(values: Floats, products: Floats, similarity: Floats) -> Floats:
    """The objective's gradient with respect to the logits, from the scalar products of the
    moves.
    """
    with_mean = products @ values
    apart = np.sqrt(np.maximum(np.diag(products) - 2 * with_mean + values @ with_mean, 1e-24))
    by_value = (
        apart + 1 - similarity + with_mean * (values / apart).sum() - products @ (values / apart)
    )
    return np.asarray(values * (by_value - values @ by_value))


@dataclass(frozen=True)
class FedAwaWeighting(Weighting):
    lr: float = 1e-3

    needs = Needs(sizes=True, layers="all", cost="O(K² d)")

    def init(self) -> State:
        return {"moved": {}}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        prior = size_prior(cohort.sizes)
        moved = of_present(state["moved"], cohort, 0.0)
        values = softmax(prior + moved, 1.0)
        similarity = cosine(cohort.params, cohort.sent.params)
        gradient = fedawa_slope(values, gram(cohort.params, cohort.sent.params), similarity)
        moved -= self.lr * gradient / (np.abs(gradient) + 1e-8)  # the first step of Adam
        state = {"moved": with_present(state["moved"], cohort, moved.tolist())}
        return Weights(values, {"prior": prior, "similarity": similarity}), state


def fedawa(lr: float = 1e-3) -> Method:
    """Weights learnt from how moves and models agree."""
    return Method(Weighted(FedAwaWeighting(positive("lr", lr))))

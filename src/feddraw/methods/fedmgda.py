"""FedMGDA+: the common direction that serves every client, from moves of equal length. (Hu et al.,
IEEE TNSE 2022)

With g_i = D_i / |D_i|, lambda minimises |sum lambda_i g_i|² over the simplex, at most `epsilon`
from the size shares; x <- x + server_lr · sum lambda_i g_i. The step's length has nothing to do
with local progress, so `server_lr` must be about the length of a usual move; `server_lr = 0` takes
the mean length of the round's moves, which is our addition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import Cohort, Local, Method, Server, State, Weighting, Weights, gram, not_secure
from feddraw.core.schedules import Floats, size_prior
from feddraw.errors import not_negative, positive


def shortest_combination(products: Floats, prior: Floats, epsilon: float) -> Floats:
    """The lambda of the shortest combination, near the prior."""
    from scipy.optimize import minimize

    sums_to_one = {"type": "eq", "fun": lambda v: v.sum() - 1, "jac": np.ones_like}
    how = {"constraints": sums_to_one, "method": "SLSQP", "options": {"ftol": 1e-12}}
    bounds = [(max(0.0, p - epsilon), min(1.0, p + epsilon)) for p in prior]
    found = minimize(
        lambda v: v @ products @ v, prior, jac=lambda v: 2 * products @ v, bounds=bounds, **how
    )
    values = np.maximum(0, found.x)
    return np.asarray(values / values.sum())


@dataclass(frozen=True)
class FedMgdaServer(Server):
    lr: float = 1.0

    streams = False
    proportional = False
    secure = not_secure("moves of equal length need every client's parameters")
    limitable = True  # coefficients are divided by lengths that the server measures itself

    def coefficients(self, cohort: Cohort, weights: Weights) -> Floats:
        lengths = cohort.distances
        scaled = (self.lr or lengths.mean()) * weights.values
        return np.divide(scaled, lengths, out=np.zeros_like(scaled), where=lengths > 0)


@dataclass(frozen=True)
class FedMgdaWeighting(Weighting):
    epsilon: float = 0.1

    needs = "sizes, all parameters"
    cost = "O(K² d)"
    secure = not_secure("scalar products of moves need every client's parameters")
    made_for = FedMgdaServer

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        prior, products = size_prior(cohort.sizes), gram(cohort.params, cohort.model.params)
        lengths = np.sqrt(np.maximum(np.diag(products), 1e-24))
        values = shortest_combination(products / np.outer(lengths, lengths), prior, self.epsilon)
        return Weights(values, {"prior": prior}), state


def fedmgda(epsilon: float = 0.1, server_lr: float = 0.0) -> Method:
    """The common direction of moves of equal length."""
    rule = FedMgdaWeighting(positive("epsilon", epsilon))
    return Method(Local(), rule, FedMgdaServer(not_negative("server_lr", server_lr)))

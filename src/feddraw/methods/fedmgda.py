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

from feddraw.core import (
    Cohort,
    Column,
    Method,
    Needs,
    Server,
    State,
    Sums,
    Vector,
    Weighted,
    Weighting,
    Weights,
    gram,
)
from feddraw.core.schedules import Floats, size_prior
from feddraw.errors import not_negative, positive


def shortest_combination(products: Floats, prior: Floats, epsilon: float) -> Floats:
    """The lambda of the shortest combination, near the prior."""
    from scipy.optimize import minimize

    sums_to_one = {"type": "eq", "fun": lambda v: v.sum() - 1, "jac": np.ones_like}
    how = {"constraints": sums_to_one, "method": "SLSQP", "options": {"ftol": 1e-12}}
    bounds = [(max(0.0, p - epsilon), min(1.0, p + epsilon)) for p in prior]
    shortest = minimize(
        lambda v: v @ products @ v, prior, jac=lambda v: 2 * products @ v, bounds=bounds, **how
    )
    values = np.maximum(0, shortest.x)
    return np.asarray(values / values.sum())


@dataclass(frozen=True)
class CommonDirection(Weighting):
    """The weights of the shortest combination, for moves of equal length."""

    epsilon: float = 0.1

    needs = Needs(sizes=True, layers="all", cost="O(K² d)")

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        prior = size_prior(cohort.sizes)
        products = gram(cohort.params, cohort.sent.params)
        lengths = np.sqrt(np.maximum(np.diag(products), 1e-24))
        values = shortest_combination(products / np.outer(lengths, lengths), prior, self.epsilon)
        return Weights(values, {"prior": prior}), state


@dataclass(frozen=True)
class EqualLengths(Server):
    """Every move is brought to one length, which the server measures itself.

    So limits on the weights still limit what each client adds, and a policy may be set.
    """

    lr: float = 0.0  # 0: the mean length of the round's moves

    @property
    def needs(self) -> Needs:
        return Needs(layers="all")

    def step(self, sums: Sums, state: State) -> tuple[Vector, State]:
        weights = sums.weights
        coefficients, segments = weights.times(lambda values: self._by_length(sums, values))
        return sums.cohort.averaged(coefficients, segments), state

    def coefficients_in_ledger(self, sums: Sums) -> Column:
        return self._by_length(sums, sums.weights.values)

    def _by_length(self, sums: Sums, values: Column) -> Column:
        lengths = sums.cohort.distances
        scaled = (self.lr or lengths.mean()) * values
        return np.divide(scaled, lengths, out=np.zeros_like(scaled), where=lengths > 0)


def fedmgda(epsilon: float = 0.1, server_lr: float = 0.0) -> Method:
    """The common direction of moves of equal length."""
    weighting = CommonDirection(positive("epsilon", epsilon))
    return Method(Weighted(weighting, EqualLengths(not_negative("server_lr", server_lr))))

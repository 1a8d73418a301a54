"""Krum: takes the client with the smallest distances to its nearest neighbours. (Blanchard et al.,
NeurIPS 2017)

A client's score is the sum of squared distances to its K - f - 2 nearest (at least one), f the
number of clients that may be false; `keep` of the lowest scores are averaged. Clients with equal
scores share: with one neighbour the two closest always tie, and which has the lower number must not
decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import (
    Cohort,
    Local,
    Method,
    Server,
    State,
    Weighting,
    Weights,
    gram,
    normalize,
    not_secure,
)
from feddraw.errors import UserError


@dataclass(frozen=True)
class KrumWeighting(Weighting):
    false: int = 1
    keep: int = 1

    needs = "all parameters"
    cost = "O(K² d)"
    secure = not_secure("distances between clients need every client's parameters")
    selects = True

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        products = gram(cohort.params, cohort.model.params)
        lengths = np.diag(products)
        squares = np.maximum(0, lengths[:, None] - 2 * products + lengths)  # but for rounding
        near = np.sort(squares, axis=1)[:, 1 : 1 + max(1, len(squares) - self.false - 2)]
        scores = near.sum(axis=1)
        limit = np.sort(scores)[min(self.keep, len(scores)) - 1]
        rounding = (
            1e-9 * limit + 1e-12 * lengths
        )  # each client's own, or a long update would hide the others'
        return normalize((scores <= limit + rounding).astype(np.float64)), state


def krum(false: int = 1, keep: int = 1) -> Method:
    """The client, or the few, that lie closest to the others."""
    if false < 0 or keep < 1:
        raise UserError(f"false must be zero or more and keep at least 1, not {false} and {keep}")
    return Method(Local(), KrumWeighting(false, keep), Server())

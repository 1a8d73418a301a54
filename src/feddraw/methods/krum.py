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
from numpy.typing import NDArray

from feddraw.core import Cohort, Column, Method, Needs, Selection, Weighted, gram
from feddraw.errors import UserError


@dataclass(frozen=True)
class KrumSelection(Selection):
    false: int = 1
    keep: int = 1

    needs = Needs(layers="all", cost="O(K² d)")

    def select(self, cohort: Cohort) -> NDArray[np.bool_]:
        products = gram(cohort.params, cohort.sent.params) + _statistics_products(cohort)
        lengths = np.diag(products)
        squares = np.maximum(0, lengths[:, None] - 2 * products + lengths)  # but for rounding
        neighbours = max(1, len(squares) - self.false - 2)
        nearest = np.sort(squares, axis=1)[:, 1 : 1 + neighbours]
        scores = nearest.sum(axis=1)
        limit = np.sort(scores)[min(self.keep, len(scores)) - 1]
        # Each client's own rounding: a long update would else hide the others'.
        rounding = 1e-9 * limit + 1e-12 * lengths
        return np.asarray(scores <= limit + rounding)


def _statistics_products(cohort: Cohort) -> Column:
    """Scalar products of how batch-norm statistics moved, as long in the middle as the moves.

    Otherwise a client with honest parameters and false statistics would look like the others.
    """
    moved = np.stack([u.model.statistics_moved(cohort.sent) for u in cohort.updates])
    products = moved @ moved.T
    middle = float(np.median(np.diag(products)))
    if not middle:
        return np.zeros_like(products)
    return np.asarray(products * (float(np.median(cohort.distances**2)) / middle))


def krum(false: int = 1, keep: int = 1) -> Method:
    """The client, or the few, that lie closest to the others."""
    if false < 0 or keep < 1:
        raise UserError(f"false must be zero or more and keep at least 1, not {false} and {keep}")
    return Method(Weighted(KrumSelection(false, keep)))

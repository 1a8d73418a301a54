"""Trimmed mean: in every coordinate the highest and lowest values are left out. (Yin et al., ICML
2018)

Of K clients, floor(share · K) are left out on either side, so of four clients nobody at a share
below 0.25; the rest count the same, whatever their size. Batch-norm statistics are treated alike.
The ledger's weight is the share of coordinates that came from a client.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from feddraw.core import Cohort, Joint, JointResult, Matrix, Method, Needs, Vector, Weights
from feddraw.errors import UserError

BLOCK = 1 << 16  # columns at a time


@dataclass(frozen=True)
class TrimmedMean(Joint):
    share: float = 0.2

    needs = Needs(layers="all", cost="O(K d)")

    def weigh(self, cohort: Cohort) -> Weights:
        clients = len(cohort.updates)
        return Weights(np.full(clients, 1 / clients))

    def combine(self, cohort: Cohort, weights: Weights) -> JointResult:
        params = self._mean(cohort.params)
        for span, values in weights.segments:
            if values.any():  # over the clients that label the row's finding
                params[span] = self._mean(cohort.params[values > 0][:, span])
        used = np.zeros(len(cohort.updates))  # in how many coordinates each client's value counts
        for block, middle in self._blocks(cohort.params):
            used += ((block >= middle[0]) & (block <= middle[-1])).sum(axis=1)
        return JointResult(params, self._mean(cohort.buffers), used / used.sum())

    def _mean(self, rows: Matrix) -> Vector:
        means = [
            middle.mean(axis=0, dtype=np.float64).astype(rows.dtype)
            for _, middle in self._blocks(rows)
        ]
        return np.concatenate(means) if means else rows[0].copy()

    def _blocks(self, rows: Matrix) -> Iterator[tuple[Matrix, Matrix]]:
        """Some columns at a time: the clients' values, and the sorted ones in the middle."""
        left_out = min(math.floor(self.share * len(rows)), (len(rows) - 1) // 2)
        for start in range(0, rows.shape[1], BLOCK):
            block = rows[:, start : start + BLOCK]
            yield block, np.sort(block, axis=0)[left_out : len(rows) - left_out]


def trimmed_mean(share: float = 0.2) -> Method:
    """The mean without the highest and lowest values."""
    if not 0 <= share < 0.5:
        raise UserError(f"share must be from 0 to below 0.5, not {share}")
    return Method(TrimmedMean(share))

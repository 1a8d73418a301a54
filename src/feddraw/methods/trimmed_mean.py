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

from feddraw.core import (
    Cohort,
    Column,
    Local,
    Matrix,
    Method,
    Server,
    State,
    Vector,
    Weights,
    not_secure,
)
from feddraw.errors import UserError
from feddraw.methods.uniform import Uniform

TRIM_BLOCK = 1 << 16  # columns at a time


@dataclass(frozen=True)
class TrimmedMean(Server):
    share: float = 0.2

    linear = False
    streams = False
    takes_weights = False
    proportional = False
    secure = not_secure("the middle of all values needs every client's parameters")

    def kept(self, rows: Matrix) -> Iterator[tuple[Matrix, Matrix]]:
        """Block by block, the clients' values and the sorted ones in the middle."""
        out = min(math.floor(self.share * len(rows)), (len(rows) - 1) // 2)
        for start in range(0, rows.shape[1], TRIM_BLOCK):
            block = rows[:, start : start + TRIM_BLOCK]
            yield block, np.sort(block, axis=0)[out : len(rows) - out]

    def mean(self, rows: Matrix) -> Vector:
        means = [
            middle.mean(axis=0, dtype=np.float64).astype(rows.dtype)
            for _, middle in self.kept(rows)
        ]
        return np.concatenate(means) if means else rows[0].copy()

    def coefficients(self, cohort: Cohort, weights: Weights) -> Column:
        used = sum(((b >= m[0]) & (b <= m[-1])).sum(axis=1) for b, m in self.kept(cohort.params))
        return np.asarray(used / np.sum(used))

    def step(self, cohort: Cohort, weights: Weights, state: State) -> tuple[Vector, State]:
        return self.mean(cohort.params), state

    def buffers(self, cohort: Cohort, weights: Weights) -> Vector:
        return self.mean(cohort.buffers)


def trimmed_mean(share: float = 0.2) -> Method:
    """The mean without the highest and lowest values."""
    if not 0 <= share < 0.5:
        raise UserError(f"share must be from 0 to below 0.5, not {share}")
    return Method(Local(), Uniform(), TrimmedMean(share))

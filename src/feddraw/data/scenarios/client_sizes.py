"""How many images each client gets: counts scaled, rounded and shared out exactly, the same on
every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

import numpy as np

from feddraw.errors import UserError

LARGEST_SCALE = 1000  # times the images of any archive that there is


def scaled_count(count: int, scale: float) -> int:
    """`count * scale`, halves up; in decimal, because 9,500 × 0.045 is 427.5 on paper and not
    always in binary.
    """
    if scale > LARGEST_SCALE:
        raise UserError(f"scale must be at most {LARGEST_SCALE:,}, not {scale:g}")
    return int((Decimal(count) * Decimal(repr(float(scale)))).quantize(Decimal(1), ROUND_HALF_UP))


def rounded_half_up(value: float) -> int:
    return int(np.floor(value + 0.5))


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """`total` split in proportion to the weights, into whole numbers that sum to it."""
    heaps = np.cumsum(weights)
    marks = np.floor(np.round(heaps / heaps[-1] * total, 9) + 0.5).astype(int)
    return [int(part) for part in np.diff(marks, prepend=0)]

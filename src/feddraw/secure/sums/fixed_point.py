"""Real numbers as integers modulo 2^64, so that sums are exact and masks can be added to them.

A value v becomes the integer nearest to v · 2^40, negative ones as 2^64 minus their size. With K
clients each value is at most `fixed_point_limit(K)` in size, so the sum of K integers stays below
2^63: it cannot overflow, and its sign is known. Each client's rounding is at most 2^-41, so a sum
of K is at most K · 2^-41 away from the sum of real numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.errors import UserError

Words = NDArray[np.uint64]

FRACTION_BITS = 40
_BLOCK = 1 << 16  # values at a time: what is worked on stays in the processor's cache


def fixed_point_limit(clients: int) -> float:
    """The largest size of a value that each of so many clients can send: their integers stay below
    2^63 together.
    """
    whole = (2**63 - 1) // clients
    size = float(whole)
    if int(size) > whole:  # float64 has 53 bits and may have rounded up
        size = math.nextafter(size, 0.0)
    return math.ldexp(size, -FRACTION_BITS)


def to_fixed_point(values: NDArray[Any], clients: int, out: Words | None = None) -> Words:
    """The values as integers modulo 2^64; refuses values that are not finite or above
    `fixed_point_limit`.
    """
    flat = np.asarray(values).reshape(-1)
    words = np.empty(len(flat), np.uint64) if out is None else out
    largest = fixed_point_limit(clients)
    scale = math.ldexp(1.0, FRACTION_BITS)
    scratch = np.empty(min(_BLOCK, len(flat)))
    for start in range(0, len(flat), _BLOCK):
        block = flat[start : start + _BLOCK]
        scaled = np.multiply(
            block, scale, out=scratch[: len(block)], casting="unsafe", dtype=np.float64
        )
        _check_fits_fixed_point(scaled, largest * scale, clients)
        np.copyto(
            words[start : start + len(block)].view(np.int64),
            np.rint(scaled, out=scaled),
            casting="unsafe",
        )
    return words


def _check_fits_fixed_point(scaled: NDArray[np.float64], largest: float, clients: int) -> None:
    low, high = float(scaled.min()), float(scaled.max())  # nan where one is nan
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UserError(
            "a secure sum takes finite numbers only: this client's values have NaN or infinity"
        )
    if max(-low, high) > largest:
        size = max(-low, high) / 2.0**FRACTION_BITS
        raise UserError(
            f"a value of size {size:.3g} is too large for a secure sum of {clients} clients: "
            f"at most {fixed_point_limit(clients):.3g}"
        )


def from_fixed_point(words: Words, *, in_place: bool = False) -> NDArray[np.float64]:
    """The real numbers of a sum of integers, in the memory of the words if that is asked for."""
    out = words.view(np.float64) if in_place else np.empty(len(words))
    return np.multiply(words.view(np.int64), math.ldexp(1.0, -FRACTION_BITS), out=out)

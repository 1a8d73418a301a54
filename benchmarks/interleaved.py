"""Ratios of times measured side by side: A and B alternate, so that whatever else the machine does hits both."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Ratio(NamedTuple):
    """Median of the ratios of neighbouring blocks, with a 95 % interval from the order statistics."""

    median: float
    low: float
    high: float


def ratio(slow: Callable[[], float], fast: Callable[[], float], blocks: int) -> Ratio:
    """Seconds of one over seconds of the other; both are functions that time themselves."""
    slow()  # warm up
    fast()
    ratios = []
    for block in range(blocks):
        if block % 2:  # neither goes first always
            below, above = fast(), slow()
        else:
            above, below = slow(), fast()
        ratios.append(above / below)
    ordered = np.sort(ratios)
    half = 0.98 * np.sqrt(blocks)  # normal approximation to the ranks around a median
    low, high = int(np.floor(blocks / 2 - half)), int(np.ceil(blocks / 2 + half))
    return Ratio(float(np.median(ordered)), float(ordered[max(low, 0)]), float(ordered[min(high, blocks - 1)]))


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def heading(blocks: int) -> str:
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} at the start, {blocks} interleaved blocks"


def show(what: str, found: Ratio, bar: str) -> None:
    print(f"{what:<66} {found.median:7.4f}  [{found.low:.4f}, {found.high:.4f}]   {bar}", flush=True)

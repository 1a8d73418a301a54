"""Ratios of times measured side by side, with an interval of their median that assumes nothing about the noise."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, TypeVar

import numpy as np

Item = TypeVar("Item")
Progress = Callable[[str, int, int], None]
Timed = Callable[[], float]  # does its work and says how many seconds it took
Samples = dict[str, list[float]]  # name to seconds, a number a block


class Ratio(TypedDict):
    """The median over blocks and its 95 % interval."""

    median: float
    low: float
    high: float


def _silent(_what: str, _done: int, _total: int) -> None:
    pass


@dataclass(frozen=True)
class Session:
    """How thoroughly to measure, and whom to tell."""

    blocks: int = 20
    quick: bool = False
    progress: Progress = _silent
    pythons: Mapping[str, str] = field(default_factory=dict)  # a peer's own interpreter, by its name

    def interleave(self, what: str, works: Mapping[str, Timed], blocks: int = 0) -> Samples:
        """Seconds of each work in every block, after one of each to warm up; the order rotates."""
        blocks, names = blocks or self.blocks, list(works)
        samples: Samples = {name: [] for name in names}
        for block in self.each(what, range(blocks + 1)):
            for name in names[block % len(names) :] + names[: block % len(names)]:
                samples[name].append(works[name]())
        return {name: seconds[1:] for name, seconds in samples.items()}

    def each(self, what: str, items: Sequence[Item]) -> Iterator[Item]:
        """The items, with a word about how many are done."""
        for done, item in enumerate(items):
            self.progress(what, done, len(items))
            yield item
        self.progress(what, len(items), len(items))


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """The ratio within each block."""
    return interval(np.asarray(above) / np.asarray(below))


def interval(values: Sequence[float] | np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Ratio:
    """Median and the order statistics that hold it between them in 95 of 100 cases; fewer than six values: all."""
    ordered = np.sort(np.asarray(values, np.float64))
    aside = _aside(len(ordered))
    return {"median": float(np.median(ordered)), "low": float(ordered[aside]), "high": float(ordered[-1 - aside])}


def _aside(blocks: int) -> int:
    """How many values may be left out at either end: half of them lie below the median, by the binomial law."""
    below = np.cumsum([math.comb(blocks, k) for k in range(blocks)]) / 2**blocks
    return max(0, int(np.searchsorted(below, 0.025, side="right")) - 1)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start

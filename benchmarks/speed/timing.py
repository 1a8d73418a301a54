"""Times measured side by side, their ratios, and an interval of the median that assumes nothing
about the noise.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import numpy as np

from feddraw.errors import RunFailed

CHECKOUT = Path(__file__).parents[2]
Item = TypeVar("Item")
TimingProgress = Callable[[str, int, int], None]
Timed = Callable[[], float]  # does its work and says how many seconds it took
Samples = dict[str, list[float]]  # name to seconds, a number a block


class Ratio(TypedDict):
    """The median over blocks and its 95 % interval."""

    median: float
    low: float
    high: float


def _say_nothing(_what: str, _done: int, _total: int) -> None:
    pass


@dataclass(frozen=True)
class TimingSession:
    """How thoroughly to measure, and whom to tell."""

    blocks: int = 20
    quick: bool = False
    progress: TimingProgress = _say_nothing
    # a peer's own interpreter, by its name
    pythons: Mapping[str, str] = field(default_factory=dict)

    def interleave(self, what: str, works: Mapping[str, Timed], blocks: int = 0) -> Samples:
        """Seconds of each work in every block, after one of each to warm up; the order rotates."""
        names = list(works)
        samples: Samples = {name: [] for name in names}
        for block in self.each(what, range((blocks or self.blocks) + 1)):
            first = block % len(names)
            for name in names[first:] + names[:first]:
                samples[name].append(works[name]())
        return {name: seconds[1:] for name, seconds in samples.items()}

    def each(self, what: str, items: Sequence[Item]) -> Iterator[Item]:
        """The items, with a word about how many are done."""
        for done, item in enumerate(items):
            self.progress(what, done, len(items))
            yield item
        self.progress(what, len(items), len(items))


def ratio_of_times(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """The ratio within each block."""
    return median_interval(np.asarray(above) / np.asarray(below))


def median_interval(
    values: Sequence[float] | np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> Ratio:
    """Median and the order statistics that hold it between them in 95 of 100 cases; fewer than six
    values: all.
    """
    ordered = np.sort(np.asarray(values, np.float64))
    aside = _values_beyond_interval(len(ordered))
    return {
        "median": float(np.median(ordered)),
        "low": float(ordered[aside]),
        "high": float(ordered[-1 - aside]),
    }


def _values_beyond_interval(blocks: int) -> int:
    """How many values may be left out at either end: half of them lie below the median, by the
    binomial law.
    """
    below = np.cumsum([math.comb(blocks, k) for k in range(blocks)]) / 2**blocks
    return max(0, int(np.searchsorted(below, 0.025, side="right")) - 1)


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measured_in_own_process(module: str, *arguments: str) -> Any:
    """What a module of this folder prints as JSON when it is run by itself."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["without a word"]
        raise RunFailed(f"{module} failed: {lines[-1]}")
    return json.loads(done.stdout)

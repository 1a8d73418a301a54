"""How long something will still take: at the pace so far, or shared between several workers."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


def seconds_left(elapsed: float, done: float, total: float) -> float | None:
    """Seconds until `total` is done, at the pace at which `done` was done in `elapsed` seconds;
    None while nothing is done.
    """
    if done <= 0 or total <= 0:
        return None
    return elapsed * (total - done) / done


def seconds_until_all_done(
    under_way: Iterable[float], waiting: Iterable[float], workers: int
) -> float:
    """Seconds until every piece of work is done: a waiting one goes to the worker that is free
    first.

    `under_way` are the seconds that each piece under way still needs, `waiting` the seconds that
    each of the others takes, in the order in which they begin.
    """
    busy = list(under_way)
    idle = [0.0] * max(workers - len(busy), 0 if busy else 1)
    free_at = [*busy, *idle]
    heapq.heapify(free_at)
    for seconds in waiting:
        heapq.heapreplace(free_at, free_at[0] + seconds)
    return max(free_at)

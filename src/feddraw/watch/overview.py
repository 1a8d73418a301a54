"""All runs in one document: which have changed, how many are done, and when the rest will be."""

from __future__ import annotations

import heapq
import statistics
import time
from collections import Counter
from typing import Any

from feddraw.text import grouped
from feddraw.watch.followed_runs import FollowedFolder, FollowedRun


def overview_of_runs(followed: FollowedFolder, since: int) -> dict[str, Any]:
    """The runs that changed after a version, and what concerns all of them."""
    runs = list(followed.runs.values())
    begun = {run.name for run in runs}
    waiting = [
        name
        for name, (state, _) in followed.planned.items()
        if state == "waiting" and name not in begun
    ]
    failed = {
        name: why
        for name, (state, why) in followed.planned.items()
        if state == "failed" and name not in begun
    }
    now = time.time()
    usual = usual_round_seconds(runs)
    lefts = {
        run.number: run.left(now, usual.get(run.method, usual.get("")))
        for run in runs
        if run.state == "running"
    }
    return {
        "version": followed.version,
        "order": [run.number for run in runs],
        "changed": [run.summary() for run in runs if run.version > since],
        "left": lefts,
        "waiting": waiting,
        "failed": failed,
        "counts": Counter(run.state for run in runs)
        + Counter({"waiting": len(waiting), "failed": len(failed)}),
        "all_left": overview_seconds_left(followed, runs, waiting, lefts),
        "scenarios": len({str(run.summary()["scenario"]) for run in runs}),
        "share": mean_share_done(runs, len(waiting)),
    }


def usual_round_seconds(runs: list[FollowedRun]) -> dict[str, float]:
    """A round's seconds by method, and under the empty name over all methods."""
    known = [(run.method, run.round_seconds) for run in runs if run.round_seconds is not None]
    found = grouped([*known, *(("", seconds) for _, seconds in known)])
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def overview_seconds_left(
    followed: FollowedFolder,
    runs: list[FollowedRun],
    waiting: list[str],
    lefts: dict[int, float | None],
) -> float | None:
    """Seconds until all is done, if something is running: a waiting run goes to the worker that is
    free first.
    """
    known = [left for left in lefts.values() if left is not None]
    if not lefts or len(known) < len(lefts):
        return None
    free = sorted(known) + [0.0] * (followed.workers - len(known))
    heapq.heapify(free)
    whole = [
        run.round_seconds * run.total for run in runs if run.round_seconds is not None and run.total
    ]
    for _ in waiting:
        if not whole:
            return None
        heapq.heapreplace(free, free[0] + statistics.median(whole))
    return max(free)


def mean_share_done(runs: list[FollowedRun], waiting: int) -> float:
    """The mean share of its rounds that a run has done, over all begun or waiting; 0 where they are
    not known.
    """
    shares = [
        1.0 if run.state == "finished" else run.done / run.total if run.total else 0.0
        for run in runs
    ]
    return sum(shares) / (len(shares) + waiting) if shares or waiting else 0.0

"""All runs in one document: which have changed, how many are done, and when the rest will be."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from feddraw.system.time_left import seconds_until_all_done
from feddraw.text import grouped
from feddraw.watch.followed_folder import FollowedFolder
from feddraw.watch.followed_run import FollowedRun
from feddraw.watch.run_documents import run_summary


def overview_of_runs(followed: FollowedFolder, since: int) -> dict[str, Any]:
    """The runs that changed after a version, and what concerns all of them."""
    runs = list(followed.runs.values())
    begun = {run.name for run in runs}
    planned = {name: run for name, run in followed.planned.items() if name not in begun}
    waiting = [name for name, run in planned.items() if run.state == "waiting"]
    failed = {name: run.why for name, run in planned.items() if run.state == "failed"}
    now = time.time()
    usual = usual_round_seconds(runs)
    lefts = {
        run.number: run.left(now, usual.get(run.method, usual.get("")))
        for run in runs
        if run.state == "running"
    }
    counts = Counter(run.state for run in runs)
    counts += Counter({"waiting": len(waiting), "failed": len(failed)})
    return {
        "version": followed.version,
        "order": [run.number for run in runs],
        "changed": [run_summary(run) for run in runs if run.version > since],
        "left": lefts,
        "waiting": waiting,
        "failed": failed,
        "counts": counts,
        "all_left": all_seconds_left(runs, lefts, len(waiting), followed.workers),
        "scenarios": len({run.scenario for run in runs}),
        "share": mean_share_done(runs, len(waiting)),
    }


def usual_round_seconds(runs: Sequence[FollowedRun]) -> dict[str, float]:
    """A round's seconds by method, and under the empty name over all methods."""
    known = [(run.method, run.round_seconds) for run in runs if run.round_seconds is not None]
    by_method = grouped([*known, *(("", seconds) for _, seconds in known)])
    return {name: statistics.median(seconds) for name, seconds in by_method.items()}


def all_seconds_left(
    runs: Sequence[FollowedRun], lefts: Mapping[int, float | None], waiting: int, workers: int
) -> float | None:
    """Seconds until all is done, if something is running and its time is known; a waiting run takes
    as long as the others in the middle.
    """
    under_way = [left for left in lefts.values() if left is not None]
    whole = [
        run.round_seconds * run.total for run in runs if run.round_seconds is not None and run.total
    ]
    if not lefts or len(under_way) < len(lefts) or (waiting and not whole):
        return None
    usual = statistics.median(whole) if waiting else 0.0
    return seconds_until_all_done(under_way, [usual] * waiting, workers)


def mean_share_done(runs: Sequence[FollowedRun], waiting: int) -> float:
    """The mean share of its rounds that a run has done, over all begun or waiting; 0 where they are
    not known.
    """
    shares = [_share_done(run) for run in runs]
    return sum(shares) / (len(shares) + waiting) if shares or waiting else 0.0


def _share_done(run: FollowedRun) -> float:
    if run.state == "finished":
        return 1.0
    return run.done / run.total if run.total else 0.0

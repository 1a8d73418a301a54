"""What of a study is done, running and left, and how long the rest will take."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

ENOUGH_DONE = 0.02  # of a run must be done before its time is multiplied up


@dataclass(frozen=True)
class StudyEvent:
    """Something that happened in a study."""

    kind: Literal["skipped", "started", "progress", "finished", "failed", "left out"]
    run: str
    text: str = ""
    done: float = 0.0  # share of the run
    row: Mapping[str, Any] | None = None


@dataclass
class RunUnderWay:
    began: float
    now: str = "starting"
    share: float = 0.0  # of the whole run that is done
    first: float | None = None  # of which so much was done before, if it was resumed


class StudyProgress:
    """Follows the events of a study; times are those of its own runs.

    `expected` are seconds per run, where somebody has measured them; they set how much one run
    counts beside another.
    """

    def __init__(
        self,
        runs: Iterable[str],
        workers: int,
        expected: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.waiting = dict.fromkeys(runs)  # in the order in which they begin
        self.total = len(self.waiting)
        self.workers = max(1, workers)
        self.running: dict[str, RunUnderWay] = {}
        self.failed: dict[str, str] = {}
        self.left_out: list[str] = []
        self.finished = self.skipped = 0
        self._expected = dict(expected or {})
        self._clock = clock
        self.began = clock()
        self._spent, self._done = (
            0.0,
            0.0,
        )  # seconds that finished runs took, and what they cost in expected seconds

    def note(self, event: StudyEvent) -> None:
        self.waiting.pop(event.run, None)
        if event.kind in ("started", "progress"):
            run = self.running.setdefault(event.run, RunUnderWay(self._clock()))
            run.now = event.text or run.now
            if event.kind == "progress" and event.text.startswith(
                "round"
            ):  # not while images are prepared
                run.share = event.done
                run.first = event.done if run.first is None else run.first
            return
        ended = self.running.pop(event.run, None)
        if event.kind == "finished":
            self.finished += 1
            if ended is not None:
                self._spent += self._clock() - ended.began
                self._done += (1 - (ended.first or 0.0)) * self.cost(event.run)
        elif event.kind == "skipped":
            self.skipped += 1
        elif event.kind == "left out":
            self.left_out.append(event.run)
        else:
            self.failed[event.run] = event.text

    def cost(self, run: str) -> float:
        """Of a whole run, in expected seconds; without them every run costs the same."""
        return self._expected.get(run, 1.0)

    @property
    def elapsed(self) -> float:
        return self._clock() - self.began

    @property
    def pace(self) -> float | None:
        """Seconds per expected second, so far; unknown where nothing was expected and nothing is
        done.
        """
        now = self._clock()
        done = self._done + sum(
            (r.share - (r.first or 0.0)) * self.cost(n) for n, r in self.running.items()
        )
        usual = sum(map(self.cost, self.running)) / max(1, len(self.running))
        if done > ENOUGH_DONE * usual:
            return (self._spent + sum(now - run.began for run in self.running.values())) / done
        return 1.0 if self._expected else None

    def seconds_left(self, also: Sequence[str] | None = None) -> float | None:
        """Until all runs are done, or those under way and these: each goes to the worker that is
        free first.
        """
        pace = self.pace
        if pace is None:
            return None
        free = sorted((1 - run.share) * self.cost(name) for name, run in self.running.items())
        free = [0.0] * (self.workers - len(free)) + free
        heapq.heapify(free)
        for name in self.waiting if also is None else also:
            heapq.heapreplace(free, free[0] + self.cost(name))
        return pace * max(free)

    def run_left(self, name: str) -> float | None:
        """Seconds that a run under way still needs."""
        pace, run = self.pace, self.running[name]
        return None if pace is None else pace * (1 - run.share) * self.cost(name)

    @property
    def share(self) -> float:
        """Of all work that is done."""
        whole = self._done + sum(map(self.cost, [*self.running, *self.waiting]))
        done = self._done + sum(run.share * self.cost(name) for name, run in self.running.items())
        return done / whole if whole else 1.0

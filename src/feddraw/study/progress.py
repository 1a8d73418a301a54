"""What of a study is done, running and left, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from feddraw.system.time_left import seconds_until_all_done

ENOUGH_DONE = 0.02  # share of a run that must be done before its time is multiplied up


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
    """A run that a worker has begun."""

    began: float  # seconds, by the clock of its study
    now: str = "starting"
    share: float = 0.0  # of the whole run that is done
    first: float | None = None  # of which so much was done before, if it was resumed

    @property
    def done_here(self) -> float:
        """Share of the whole run that was done since it began here."""
        return self.share - (self.first or 0.0)


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
        self.finished = 0
        self.skipped = 0
        self._expected = dict(expected or {})
        self._clock = clock
        self.began = clock()
        self._spent = 0.0  # seconds that finished runs took
        self._done = 0.0  # what they cost, in expected seconds

    def note(self, event: StudyEvent) -> None:
        """Take an event in."""
        self.waiting.pop(event.run, None)
        if event.kind in ("started", "progress"):
            self._note_under_way(event)
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

    def _note_under_way(self, event: StudyEvent) -> None:
        run = self.running.setdefault(event.run, RunUnderWay(self._clock()))
        if event.text:
            run.now = event.text
        if event.kind == "progress" and event.text.startswith("round"):  # not while data are opened
            run.share = event.done
            if run.first is None:
                run.first = event.done

    def cost(self, run: str) -> float:
        """Of a whole run, in expected seconds; without them every run costs the same."""
        return self._expected.get(run, 1.0)

    @property
    def elapsed(self) -> float:
        """Seconds since the study began."""
        return self._clock() - self.began

    @property
    def pace(self) -> float | None:
        """Seconds per expected second, so far; None where nothing was expected and nothing is
        done.
        """
        done = self._done
        spent = self._spent
        now = self._clock()
        for name, run in self.running.items():
            done += run.done_here * self.cost(name)
            spent += now - run.began
        mean_cost = sum(map(self.cost, self.running)) / max(1, len(self.running))
        if done > ENOUGH_DONE * mean_cost:
            return spent / done
        return 1.0 if self._expected else None

    def seconds_left(self, others: Sequence[str] | None = None) -> float | None:
        """Seconds until all runs are done; with `others`, until those under way and these are."""
        pace = self.pace
        if pace is None:
            return None
        under_way = [(1 - run.share) * self.cost(name) for name, run in self.running.items()]
        waiting = map(self.cost, self.waiting if others is None else others)
        return pace * seconds_until_all_done(under_way, waiting, self.workers)

    def run_left(self, name: str) -> float | None:
        """Seconds that a run under way still needs."""
        pace = self.pace
        if pace is None:
            return None
        return pace * (1 - self.running[name].share) * self.cost(name)

    @property
    def share(self) -> float:
        """Of all work that is done."""
        whole = self._done + sum(map(self.cost, [*self.running, *self.waiting]))
        done = self._done + sum(run.share * self.cost(name) for name, run in self.running.items())
        return done / whole if whole else 1.0

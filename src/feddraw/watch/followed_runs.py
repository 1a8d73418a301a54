"""Run folders followed while they grow: only what was added since the last look is read, and
nothing is ever written.

A run is whatever the one reader of run folders takes, so also the folder of a Flower or FLARE
server. Whether it is running is seen from the lock that the run holds on its folder, without taking
it.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

from feddraw.errors import UserError
from feddraw.results.find_runs import is_run_folder, walk_folders
from feddraw.results.round_log import RoundLine
from feddraw.results.run_reader import RunReader, read_stop_reason, time_of_change
from feddraw.server.ledger import LedgerEntry
from feddraw.system.file_reading import read_json
from feddraw.system.locks import locked_inodes
from feddraw.text import safe_line

T = TypeVar("T")
RunState = Literal["running", "waiting", "finished", "stopped", "failed", "broken"]

PLAN_FILE = re.compile(r"plan(-\d+-of-\d+)?\.json")
MOST_FOLLOWED_RUNS = 5_000
MOST_CLIENTS = 5_000  # of a run that are kept; clients of a federation choose their own names
MOST_REASON = 1_000  # characters of why a run stopped
MOST_STATUS = 500  # characters of what was noted about a client
MOST_TROUBLE = 200  # refused or missing updates that are shown
SHOWN_CLIENTS = 12  # on the page
MOST_POINTS = 80  # of a curve in the overview
SEARCH_EVERY = 3.0  # seconds
LOOK_EVERY = 0.5  # seconds
RECENT_ROUNDS = 5  # rounds whose median is the time of a round
# Seconds without news after which a run counts as stopped, where locks cannot be seen.
QUIET_SECONDS = 120.0


@dataclass(frozen=True)
class Trouble:
    """What was noted about a client in a round, or is wrong with its update."""

    round: int
    client: str
    status: str


@dataclass
class FollowedLedger:
    """Who counted how much, as far as the ledger has been read."""

    clients: dict[str, float] = field(default_factory=dict)  # the most images that each said it has
    weights: dict[int, dict[str, float]] = field(default_factory=dict)  # by round
    influence: dict[str, float] = field(default_factory=dict)  # the last known of each client
    trouble: list[Trouble] = field(default_factory=list)

    def add(self, entry: LedgerEntry) -> None:
        client = _shown_client(entry.client)
        if client not in self.clients and len(self.clients) >= MOST_CLIENTS:
            return
        size = entry.size if math.isfinite(entry.size) else 0.0
        self.clients[client] = max(self.clients.get(client, 0.0), size)
        if entry.weighted:
            weights = self.weights.setdefault(entry.round, {})
            if math.isfinite(entry.weight):  # else it is hidden
                weights[client] = entry.weight
            if math.isfinite(entry.influence):
                self.influence[client] = entry.influence
        if entry.status not in ("weighted", "not sampled"):
            self.trouble.append(Trouble(entry.round, client, _shown(entry.status)))

    @property
    def rounds(self) -> int:
        """Rounds in which somebody counted."""
        return 1 + max(self.weights, default=-1)

    def most_weighted(self, shown: int) -> list[str]:
        """The clients that count most in the last round, the larger first among equals; in the
        order of the ledger.
        """
        last = self.weights.get(max(self.weights, default=-1), {})
        by_weight = sorted(
            self.clients, key=lambda name: (-last.get(name, 0.0), -self.clients[name])
        )
        chosen = set(by_weight[:shown])
        return [name for name in self.clients if name in chosen]


class FollowedRun:
    """One run's folder, as far as it has been read."""

    def __init__(self, path: Path, name: str, number: int) -> None:
        self.path = path
        self.name = safe_line(name)
        self.number = number
        self.version = 0
        self.state: RunState = "stopped"
        self.why = ""
        self.rounds: list[RoundLine] = []
        self.ledger = FollowedLedger()
        self.total = 0  # T, 0 where it is not known
        self.began = 0.0  # when its settings were written, seconds since 1970
        self._reader = RunReader(path)

    # -------------------------------------------------------------------------------------- looking

    def look(self, locked: frozenset[int] | None, now: float, failed: str | None = None) -> bool:
        """Read what is new; whether anything has changed.

        `failed` is why the run failed, where a plan says so.
        """
        before = (self.state, self.why)
        changed = False
        try:
            changed = self._read()
            self.state = self._judged(locked, now)
            stopped = self.state == "stopped"
            self.why = safe_line(read_stop_reason(self.path))[:MOST_REASON] if stopped else ""
        except (UserError, OSError) as error:
            self.state = "broken"
            self.why = safe_line(str(error))[:200]
        if self.state == "stopped" and failed is not None:
            self.state = "failed"
            self.why = failed
        return changed or before != (self.state, self.why)

    def _read(self) -> bool:
        added = self._reader.look()
        if added.log_anew:
            self.rounds = []
        self.rounds += added.lines
        if added.ledger_anew:
            self.ledger = FollowedLedger()
        for entry in added.entries:
            self.ledger.add(entry)
        self.began = self._reader.settings_time or self.began
        planned = self.rounds[-1].rounds if self.rounds else 0
        self.total = planned or self._reader.names.rounds or self.total
        return bool(added)

    def _judged(self, locked: frozenset[int] | None, now: float) -> RunState:
        all_done = bool(self.total) and self.done >= self.total
        if self._reader.metrics is not None or (all_done and self.of_server):
            return "finished"
        if locked is None or self.unlocked:
            patience = max(QUIET_SECONDS, 3 * (self.round_seconds or 0.0))
            return "running" if now - self.updated < patience else "stopped"
        return "running" if self.path.stat().st_ino in locked else "stopped"

    # -------------------------------------------------------------------------------- what is known

    @property
    def of_server(self) -> bool:
        """Whether a Flower or FLARE server writes the folder, without settings."""
        return not self._reader.settings

    @property
    def unlocked(self) -> bool:
        """Whether it is the folder of a FLARE server, which writes a ledger only and holds no
        lock.
        """
        return self.of_server and not self.rounds and self.ledger.rounds > 0

    @property
    def method(self) -> str:
        return _shown_name(self._reader.names.method)

    @property
    def scenario(self) -> str:
        return _shown_name(self._reader.names.scenario)

    @property
    def done(self) -> int:
        """Rounds that are written."""
        logged = self.rounds[-1].round + 1 if self.rounds else 0
        return max(logged, self.ledger.rounds)

    @property
    def updated(self) -> float:
        """When the run last wrote something, seconds since 1970."""
        if self.rounds:
            return self.rounds[-1].time.timestamp()
        return time_of_change(self._reader.folder.ledger) or self.began

    @property
    def round_seconds(self) -> float | None:
        """What a round takes now."""
        recent = [line.whole_seconds for line in self.rounds[-RECENT_ROUNDS:]]
        known = [seconds for seconds in recent if math.isfinite(seconds) and seconds > 0]
        return statistics.median(known) if known else None

    @property
    def trouble(self) -> list[Trouble]:
        """What was noted about updates, and evaluations that are absent; by round."""
        absent = [
            Trouble(line.round, _shown_client(site.client), f"no evaluation, {_shown(site.status)}")
            for line in self.rounds
            for site in line.evaluations
            if site.absent
        ]
        return sorted([*self.ledger.trouble, *absent], key=lambda trouble: trouble.round)

    def left(self, now: float, usual: float | None) -> float | None:
        """Seconds until a run under way ends; `usual` is a round's time in other runs like it."""
        seconds = self.round_seconds or usual
        if seconds is None or not self.total:
            return None
        rest = self.total - self.done
        if not rest:
            return 0.0
        waited = now - (self.updated or now)
        return max(0.0, (rest - 1) * seconds + max(0.0, seconds - waited))

    def summary(self) -> dict[str, Any]:
        """A line of the overview."""
        validation = [
            (line.round, area)
            for line in self.rounds
            if (area := finite_or_none(line.validation.auc.macro)) is not None
        ]
        spent = [line.whole_seconds for line in self.rounds]
        diverged = next((line.diverged for line in self.rounds if line.diverged), "")
        metrics = self._reader.metrics
        return {
            "id": self.number,
            "name": self.name,
            "state": self.state,
            "why": self.why,
            "method": self.method,
            "scenario": self.scenario,
            "seed": self._reader.names.seed,
            "done": self.done,
            "rounds": self.total,
            "round_seconds": self.round_seconds,
            "spent": sum(seconds for seconds in spent if math.isfinite(seconds)),
            "updated": self.updated,
            "curve": _points_for_chart(validation),
            "trouble": len(self.trouble),
            "diverged": safe_line(diverged)[:200],
            "test": None if metrics is None else finite_or_none(metrics.test.auc.macro),
        }

    def detail(self) -> dict[str, Any]:
        """All that the page shows of one run; of very many clients those that count most."""
        ledger = self.ledger
        clients = ledger.most_weighted(SHOWN_CLIENTS)
        rounds = _points_for_chart(range(self.done))
        by_round = {line.round: line for line in self.rounds}
        lines = [by_round.get(t) for t in rounds]
        times = [_seconds_by_client(line) for line in lines]
        return {
            "summary": self.summary(),
            "server": self.of_server,
            "unlocked": self.unlocked,
            "at": rounds,
            "clients": clients,
            "all_clients": len(ledger.clients),
            "sizes": [ledger.clients[name] for name in clients],
            "weights": [[ledger.weights.get(t, {}).get(name) for t in rounds] for name in clients],
            "influence": [ledger.influence.get(name) for name in clients],
            "client_seconds": [[by_client.get(name) for by_client in times] for name in clients],
            "validation": [line and finite_or_none(line.validation.auc.macro) for line in lines],
            "loss": [line and finite_or_none(line.loss) for line in lines],
            "seconds": [line and _finite_numbers(line.seconds) for line in lines],
            "trouble": [asdict(trouble) for trouble in self.trouble[-MOST_TROUBLE:]],
            "evaluations": _evaluations(self.rounds[-1]) if self.rounds else [],
            "data": _shown_name(self._reader.names.data),
            "model": _shown_name(self._reader.names.model),
        }


def _seconds_by_client(line: RoundLine | None) -> dict[str, float]:
    """How long each client worked in a round, under the name that the page shows."""
    if line is None:
        return {}
    return _finite_numbers(
        {_shown_client(name): seconds for name, seconds in line.client_seconds.items()}
    )


def _evaluations(line: RoundLine) -> list[dict[str, Any]]:
    """What each site said of the model of a round, or why it did not."""
    return [
        {
            "client": _shown_client(site.client),
            "status": _shown(site.status),
            "images": finite_or_none(site.images),
            "seconds": finite_or_none(site.seconds),
            "auc": finite_or_none(site.metrics.get("validation-auc", math.nan)),
        }
        for site in line.evaluations[:MOST_TROUBLE]
    ]


def _finite_numbers(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def finite_or_none(value: float) -> float | None:
    """For JSON, which has no NaN."""
    return value if math.isfinite(value) else None


def _shown(status: str) -> str:
    return safe_line(status)[:MOST_STATUS]


def _shown_client(name: str) -> str:
    return safe_line(name)[:200]


def _shown_name(name: str) -> str:
    """A name out of the settings, of a path its last part."""
    return safe_line(Path(name).name if "/" in name else name)[:100]


def _points_for_chart(points: Sequence[T]) -> list[T]:
    """Not more points than a chart can show, the last one always."""
    every = math.ceil(len(points) / MOST_POINTS) or 1
    kept = list(points[::every])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


# ---------------------------------------------------------------------------------------- many runs


@dataclass(frozen=True)
class PlannedRun:
    """What a study's plan says of a run."""

    state: Literal["waiting", "failed"]
    why: str = ""


class FollowedFolder:
    """All runs at or below a folder, and the plans of studies there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.version = 0
        self.runs: dict[Path, FollowedRun] = {}
        self.planned: dict[str, PlannedRun] = {}  # by name
        self.workers = 0
        self._searched = -math.inf
        self._looked = -math.inf
        self._numbers = count()

    def look(self) -> None:
        """Bring everything up to date, not more often than is useful."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        if now - self._searched > SEARCH_EVERY:
            self._searched = now
            self._search()
        locked = locked_inodes()
        wall = time.time()
        failed = {name: run.why for name, run in self.planned.items() if run.state == "failed"}
        changed = [
            run for run in self.runs.values() if run.look(locked, wall, failed.get(run.name))
        ]
        self.version += bool(changed)
        for run in changed:
            run.version = self.version

    def _search(self) -> None:
        plans: list[Path] = []
        seen: set[Path] = set()
        for place, files in walk_folders(self.root):
            if is_run_folder(files):
                seen.add(place)
            plans += [place / name for name in files if PLAN_FILE.fullmatch(name)]
            if len(seen) >= MOST_FOLLOWED_RUNS:
                break
        gone = self.runs.keys() - seen
        for path in gone:
            del self.runs[path]
        for path in sorted(seen - self.runs.keys()):
            name = str(path.relative_to(self.root)) if path != self.root else path.resolve().name
            self.runs[path] = FollowedRun(path, name, next(self._numbers))
        planned = self._read_plans(plans)
        if gone or planned != self.planned:
            self.version += 1
        self.planned = planned

    def _read_plans(self, paths: Sequence[Path]) -> dict[str, PlannedRun]:
        """What plans say of runs, by name; a plan that is not as a study writes it says nothing."""
        planned: dict[str, PlannedRun] = {}
        self.workers = 0
        for path in paths:
            try:
                plan = read_json(path)
                inside = path.parent.relative_to(self.root)
                names = [str(inside / str(name)) for name in plan["runs"]][:MOST_FOLLOWED_RUNS]
                failed = {
                    str(inside / name): safe_line(str(why))[:300]
                    for name, why in plan["failed"].items()
                }
                left_out = {str(inside / str(name)) for name in plan["left_out"]}
                self.workers += int(plan["workers"])
            except (UserError, KeyError, TypeError, ValueError, AttributeError):
                continue
            for name in names:
                if name in left_out:
                    continue
                if name in failed:
                    planned[name] = PlannedRun("failed", failed[name])
                else:
                    planned[name] = PlannedRun("waiting")
        return planned

"""Run folders followed while they grow: only what was added since the last look is read, and
nothing is ever written.

A run is whatever has an `experiment.toml` or a ledger, so also the folder of a Flower server.
Whether it is running is seen from the lock that the run holds on its folder, without taking it.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

from feddraw.errors import UserError
from feddraw.results.run_folder import RunFolder
from feddraw.system.csv_cells import from_csv_cell
from feddraw.system.file_reading import MAX_LOG, parse_json, read_json, read_toml
from feddraw.system.locks import locked_inodes
from feddraw.text import safe_line

T = TypeVar("T")
RunState = Literal["running", "waiting", "finished", "stopped", "failed", "broken"]

SKIPPED_FOLDERS = ("checkpoint", "figures", "tensorboard")  # folders in which no run is
PLAN_FILE = re.compile(r"plan(-\d+-of-\d+)?\.json")
MOST_FOLLOWED_RUNS = 5_000
MOST_CLIENTS = 5_000  # of a run that are kept
SHOWN_CLIENTS = 12  # on the page
MOST_POINTS = 80  # of a curve in the overview
SEARCH_EVERY, LOOK_EVERY = 3.0, 0.5  # seconds
RECENT_ROUNDS = 5  # rounds whose median is the time of a round
QUIET_SECONDS = (
    120.0  # seconds without news after which a run counts as stopped, where locks cannot be seen
)
MOST_TROUBLE = 200  # refused or missing updates that are shown


class GrowingFile:
    """A file that grows, or is replaced; in a table, a name in quotation marks may have line breaks
    in it.
    """

    def __init__(self, path: Path, *, table: bool = False) -> None:
        self.path, self._table = path, table
        self._inode, self._read = 0, 0

    def forget(self) -> None:
        """Begin anew at the next look."""
        self._inode, self._read = 0, 0

    def added(self) -> tuple[bool, str]:
        """Whether it begins anew, and its whole new lines."""
        try:
            found = self.path.stat()
        except OSError:
            anew, self._inode, self._read = self._read > 0, 0, 0
            return anew, ""
        anew = found.st_ino != self._inode or found.st_size < self._read
        if anew:
            self._inode, self._read = found.st_ino, 0
        if found.st_size == self._read or not self.path.is_file():
            return anew, ""
        with self.path.open("rb") as file:
            file.seek(self._read)
            content = file.read(MAX_LOG)
        whole = content[: content.rfind(b"\n") + 1]
        if self._table and whole.count(b'"') % 2:  # a name with a line break in it is not whole yet
            return anew, ""
        self._read += len(whole)
        return anew, whole.decode(errors="replace")


@dataclass
class FollowedRound:
    """One line of the log."""

    round: int
    validation: float | None
    loss: float | None
    seconds: Mapping[str, float]
    client_seconds: Mapping[str, float]
    time: float  # when it was written, seconds since 1970
    diverged: str = ""

    @property
    def whole(self) -> float:
        return sum(self.seconds.values())


@dataclass
class FollowedLedger:
    """Who counted how much."""

    clients: dict[str, float] = field(default_factory=dict)  # the most images that each said it has
    weights: dict[int, dict[str, float]] = field(default_factory=dict)  # by round
    trouble: list[tuple[int, str, str]] = field(
        default_factory=list
    )  # round, client, what was noted or is wrong
    header: list[str] | None = None

    def read(self, text: str) -> None:
        for cells in csv.reader(io.StringIO(text, newline="")):
            if self.header is None:
                self.header = cells
            elif len(cells) == len(self.header):
                self._add(
                    {
                        name: from_csv_cell(cell)
                        for name, cell in zip(self.header, cells, strict=True)
                    }
                )

    def _add(self, line: Mapping[str, str]) -> None:
        client, round = safe_line(line["client"])[:200], int(line["round"])
        if client not in self.clients and len(self.clients) >= MOST_CLIENTS:
            return
        self.clients[client] = max(self.clients.get(client, 0.0), _as_finite(line["size"]) or 0.0)
        status = line["status"]
        if status.startswith("counted"):
            self.weights.setdefault(round, {})[client] = _as_finite(line["weight"]) or 0.0
        if status not in ("counted", "not asked"):
            self.trouble.append((round, client, safe_line(status)[:300]))


class FollowedRun:
    """One run's folder, as far as it has been read."""

    def __init__(self, path: Path, name: str, number: int) -> None:
        self.path, self.name, self.number = path, safe_line(name), number
        self.version = 0
        self.state: RunState = "stopped"
        self.why = ""
        self._files = RunFolder(path)
        self._tails = GrowingFile(self._files.rounds), GrowingFile(self._files.ledger, table=True)
        self._settings_time: float | None = None
        self._metrics_time: float | None = None
        self.settings: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        self.rounds: list[FollowedRound] = []
        self.ledger = FollowedLedger()
        self.total = 0  # T, 0 where it is not known
        self.began = 0.0

    # -------------------------------------------------------------------------------------- looking

    def look(self, locked: frozenset[int] | None, now: float, failed: str | None = None) -> bool:
        """Read what is new; whether anything has changed.

        `failed` is why the run failed, where a plan says so.
        """
        before = (self.state, self.why)
        try:
            changed = self._read()
            self.state, self.why = self._judged(locked, now), ""
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            OverflowError,
            OSError,
            csv.Error,
            UserError,
        ) as error:
            self.state, self.why = "broken", safe_line(str(error))[:200]
            for tail in self._tails:
                tail.forget()  # so that the damage is met again at the next look
            return before != (self.state, self.why)
        if self.state == "stopped" and failed is not None:
            self.state, self.why = "failed", failed
        return changed or before != (self.state, self.why)

    def _read(self) -> bool:
        metrics_time = _time_of_change(self._files.metrics)
        if metrics_time is not None and metrics_time == self._metrics_time:
            return False  # a finished run is not written to any more
        changed = metrics_time != self._metrics_time
        self.metrics = read_json(self._files.metrics) if metrics_time is not None else {}
        settings_time = _time_of_change(self._files.settings)
        if settings_time != self._settings_time:
            self.settings = read_toml(self._files.settings) if settings_time is not None else {}
            self.total = int(self.settings.get("rounds", self.total))
            self.began = settings_time or self.began
            self._settings_time, changed = settings_time, True
        (anew, lines), (anew_ledger, cells) = (tail.added() for tail in self._tails)
        if anew:
            self.rounds = []
        for line in filter(None, map(parse_json, lines.splitlines())):
            self.rounds.append(_followed_round(line, self._files.rounds))
            self.total = int(line.get("rounds", self.total))
        if anew_ledger:
            self.ledger = FollowedLedger()
        self.ledger.read(cells)
        self._metrics_time = metrics_time
        return changed or anew or anew_ledger or bool(lines or cells)

    def _judged(self, locked: frozenset[int] | None, now: float) -> RunState:
        if self.metrics or (self.total and self.done >= self.total and not self.settings):
            return "finished"
        if locked is None:
            return (
                "running"
                if now - self.updated < max(QUIET_SECONDS, 3 * (self.round_seconds or 0.0))
                else "stopped"
            )
        return "running" if self.path.stat().st_ino in locked else "stopped"

    # -------------------------------------------------------------------------------- what is known

    @property
    def method(self) -> str:
        return _followed_name(self.settings, "method")

    @property
    def done(self) -> int:
        """Rounds that are written."""
        logged = self.rounds[-1].round + 1 if self.rounds else 0
        return max(logged, 1 + max(self.ledger.weights, default=-1))

    @property
    def updated(self) -> float:
        """When the run last wrote something."""
        return (
            self.rounds[-1].time
            if self.rounds
            else _time_of_change(self._files.ledger) or self.began
        )

    @property
    def round_seconds(self) -> float | None:
        """What a round takes now."""
        recent = [one.whole for one in self.rounds[-RECENT_ROUNDS:] if one.whole > 0]
        return statistics.median(recent) if recent else None

    def left(self, now: float, usual: float | None) -> float | None:
        """Seconds until a run under way ends; `usual` is a round's time in other runs like it."""
        seconds = self.round_seconds or usual
        if seconds is None or not self.total:
            return None
        waited = now - (self.updated or now)
        rest = self.total - self.done
        return max(0.0, (rest - 1) * seconds + max(0.0, seconds - waited)) if rest else 0.0

    def summary(self) -> dict[str, Any]:
        """A line of the overview."""
        validation = [
            (one.round, one.validation) for one in self.rounds if one.validation is not None
        ]
        spent = sum(one.whole for one in self.rounds)
        return {
            "id": self.number,
            "name": self.name,
            "state": self.state,
            "why": self.why,
            "method": self.method,
            "scenario": _followed_name(self.settings, "scenario"),
            "seed": _as_finite(self.settings.get("seed")),
            "done": self.done,
            "rounds": self.total,
            "round_seconds": self.round_seconds,
            "spent": spent,
            "updated": self.updated,
            "curve": _points_for_chart(validation),
            "trouble": len(self.ledger.trouble),
            "diverged": next((one.diverged for one in self.rounds if one.diverged), ""),
            "test": _as_finite(_followed_value(self.metrics, "test", "auc", "macro")),
        }

    def detail(self) -> dict[str, Any]:
        """All that the page shows of one run; of very many clients those that count most."""
        by_round = {one.round: one for one in self.rounds}
        last = self.ledger.weights.get(max(self.ledger.weights, default=-1), {})
        clients = sorted(
            self.ledger.clients, key=lambda name: (-last.get(name, 0.0), -self.ledger.clients[name])
        )
        shown = [name for name in self.ledger.clients if name in set(clients[:SHOWN_CLIENTS])]
        at = _points_for_chart(range(self.done))
        lines = [by_round.get(t) for t in at]
        return {
            "summary": self.summary(),
            "at": at,
            "clients": shown,
            "all_clients": len(self.ledger.clients),
            "sizes": [self.ledger.clients[name] for name in shown],
            "weights": [[self.ledger.weights.get(t, {}).get(name) for t in at] for name in shown],
            "client_seconds": [
                [one and _as_finite(one.client_seconds.get(name)) for one in lines]
                for name in shown
            ],
            "validation": [one and one.validation for one in lines],
            "loss": [one and one.loss for one in lines],
            "seconds": [one and dict(one.seconds) for one in lines],
            "trouble": [
                {"round": t, "client": c, "status": s}
                for t, c, s in self.ledger.trouble[-MOST_TROUBLE:]
            ],
            "data": _followed_name(self.settings, "data"),
            "model": _followed_name(self.settings, "model"),
        }


def _followed_round(line: Mapping[str, Any], path: Path) -> FollowedRound:
    validation = line.get("validation") or {}
    seconds = {
        str(k): v
        for k, v in line.get("seconds", {}).items()
        if _as_finite(v) is not None and v >= 0
    }
    given = line.get("client_seconds", {}).items()
    took = {safe_line(str(k))[:200]: v for k, v in given if _as_finite(v) is not None}
    written = (
        datetime.fromisoformat(line["time"]).timestamp() if "time" in line else path.stat().st_mtime
    )
    numbers = (_as_finite(validation.get("macro")), _as_finite(line.get("loss")))
    diverged = safe_line(str(line.get("diverged", "")))[:200]
    return FollowedRound(int(line["round"]), *numbers, seconds, took, written, diverged)


def _as_finite(value: Any) -> float | None:
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def _followed_value(document: Any, *names: str) -> Any:
    """What lies under names within names; nothing where one of them is missing."""
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _followed_name(settings: Mapping[str, Any], section: str) -> str:
    found = settings.get(section)
    name = str(found.get("name", "")) if isinstance(found, dict) else ""
    return safe_line(Path(name).name if "/" in name else name)[:100]


def _time_of_change(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _points_for_chart(points: Sequence[T]) -> list[T]:
    """Not more points than a chart can show, the last one always."""
    every = math.ceil(len(points) / MOST_POINTS) or 1
    kept = list(points[::every])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


# ---------------------------------------------------------------------------------------- many runs


class FollowedFolder:
    """All runs at or below a folder, and the plans of studies there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.version = 0
        self.runs: dict[Path, FollowedRun] = {}
        self.planned: dict[
            str, tuple[RunState, str]
        ] = {}  # runs without a folder: what the plan says of them
        self.workers = 0
        self._searched = self._looked = -math.inf
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
        locked, wall = locked_inodes(), time.time()
        failed = {name: why for name, (state, why) in self.planned.items() if state == "failed"}
        changed = [
            run for run in self.runs.values() if run.look(locked, wall, failed.get(run.name))
        ]
        self.version += bool(changed)
        for run in changed:
            run.version = self.version

    def _search(self) -> None:
        plans: list[Path] = []
        seen: set[Path] = set()
        for place, below, files in os.walk(self.root):
            below[:] = sorted(
                name for name in below if name not in SKIPPED_FOLDERS and not name.startswith(".")
            )
            if "experiment.toml" in files or "weights.csv" in files:
                seen.add(Path(place))
            plans += [Path(place) / name for name in files if PLAN_FILE.fullmatch(name)]
            if len(seen) >= MOST_FOLLOWED_RUNS:
                break
        gone = self.runs.keys() - seen
        for path in gone:
            del self.runs[path]
        for path in sorted(seen - self.runs.keys()):
            name = str(path.relative_to(self.root)) if path != self.root else path.resolve().name
            self.runs[path] = FollowedRun(path, name, next(self._numbers))
        planned = self._plans(plans)
        if gone or planned != self.planned:
            self.version += 1
        self.planned = planned

    def _plans(self, paths: Sequence[Path]) -> dict[str, tuple[RunState, str]]:
        """What plans say of runs, by name."""
        found: dict[str, tuple[RunState, str]] = {}
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
                out = {str(inside / str(name)) for name in plan["left_out"]}
                self.workers += int(plan["workers"])
            except (UserError, KeyError, TypeError, ValueError, AttributeError):
                continue
            for name in names:
                if name not in out:
                    found[name] = ("failed", failed[name]) if name in failed else ("waiting", "")
        return found

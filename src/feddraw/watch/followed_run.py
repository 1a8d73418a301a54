"""One run's folder followed while it grows: only what was added since the last look is read, and
nothing is ever written.

A run is whatever the one reader of run folders takes, so also the folder of a Flower or FLARE
server. Whether it is running is seen from the lock that the run holds on its folder, without taking
it.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from feddraw.errors import UserError
from feddraw.results.metrics import RunMetrics
from feddraw.results.round_log import RoundLine
from feddraw.results.run_reader import RunNames, RunReader, read_stop_reason, time_of_change
from feddraw.server.ledger import LedgerEntry
from feddraw.server.status import StatusKind
from feddraw.text import safe_line

RunState = Literal["running", "waiting", "finished", "stopped", "failed", "broken"]

MOST_CLIENTS = 5_000  # of a run that are kept; clients of a federation choose their own names
MOST_REASON = 1_000  # characters of why a run stopped
MOST_STATUS = 500  # characters of what was noted about a client
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
        client = shown_client(entry.client)
        if client not in self.clients and len(self.clients) >= MOST_CLIENTS:
            return
        size = entry.size if math.isfinite(entry.size) else 0.0
        self.clients[client] = max(self.clients.get(client, 0.0), size)
        if entry.weighted:
            weights = self.weights.setdefault(entry.round, {})
            if math.isfinite(entry.weight):  # not where it is hidden
                weights[client] = entry.weight
            if math.isfinite(entry.influence):
                self.influence[client] = entry.influence
        if entry.noteworthy and entry.kind is not StatusKind.NOT_SAMPLED:
            self.trouble.append(Trouble(entry.round, client, shown_status(entry.status)))

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
        self.total = planned or self.names.rounds or self.total
        return bool(added)

    def _judged(self, locked: frozenset[int] | None, now: float) -> RunState:
        all_done = bool(self.total) and self.done >= self.total
        if self.metrics is not None or (all_done and self.of_server):
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
    def names(self) -> RunNames:
        """What its settings call the method, the data and so on, as far as they are known."""
        return self._reader.names

    @property
    def metrics(self) -> RunMetrics | None:
        """Of the last evaluation; None before it."""
        return self._reader.metrics

    @property
    def method(self) -> str:
        return shown_name(self.names.method)

    @property
    def scenario(self) -> str:
        return shown_name(self.names.scenario)

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
            Trouble(
                round=line.round,
                client=shown_client(site.client),
                status=f"no evaluation, {shown_status(site.status)}",
            )
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


def shown_status(status: str) -> str:
    return safe_line(status)[:MOST_STATUS]


def shown_client(name: str) -> str:
    return safe_line(name)[:200]


def shown_name(name: str) -> str:
    """A name out of the settings, of a path its last part."""
    return safe_line(Path(name).name if "/" in name else name)[:100]

"""The one reader of a run's folder: settings, log, ledger and metrics, as values.

It reads the whole folder at the first look and then only what was added, writes nothing, imports
nothing that a file names, and unpickles nothing. A server on Flower or FLARE writes a log and a
ledger, but no settings and no metrics: what a folder does not hold is empty here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddraw.errors import UserError
from feddraw.results.ledger_table import ledger_entry
from feddraw.results.metrics import RunMetrics
from feddraw.results.round_log import RoundLine
from feddraw.results.run_folder import RunFolder
from feddraw.server.ledger import LedgerEntry
from feddraw.system.file_reading import MAX_LOG, parse_csv, parse_jsonl, read_json, read_toml

# A partition's scenario where each site of a federation reads a folder of its own, and its name for
# readers: the settings' scenario was then not used.
PARTITION_OF_SITES = "sites"
OWN_FOLDERS = "own folders"


@dataclass(frozen=True)
class RunNames:
    """What of a run's settings everybody needs; empty for a server's folder, which has none."""

    data: str = ""
    scenario: str = ""
    model: str = ""
    method: str = ""
    seed: int | None = None
    rounds: int = 0  # planned

    @staticmethod
    def read(settings: Mapping[str, Any]) -> RunNames:
        own_folders = settings.get("partition", {}).get("scenario") == PARTITION_OF_SITES
        return RunNames(
            data=str(settings["data"]["name"]),
            scenario=OWN_FOLDERS if own_folders else str(settings["scenario"]["name"]),
            model=str(settings["model"]["name"]),
            method=str(settings["method"]["name"]),
            seed=int(settings["seed"]),
            rounds=int(settings["rounds"]),
        )


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Whatever goes wrong with what a file holds is said in one line."""
    try:
        yield
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        OverflowError,
        OSError,
    ) as error:
        detail = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{path.name} is not as a run writes it ({detail[:80]})") from None


class GrowingFile:
    """A file of text that grows, or is replaced; in a table, a name in quotation marks may have
    line breaks in it.
    """

    def __init__(self, path: Path, *, table: bool = False) -> None:
        self.path = path
        self._table = table
        self._inode = 0
        self._read = 0  # bytes

    def forget(self) -> None:
        """Begin anew at the next look."""
        self._inode = 0
        self._read = 0

    def added(self) -> tuple[bool, str]:
        """Whether it begins anew, and its whole new lines."""
        try:
            now = self.path.stat()
        except OSError:
            anew = self._read > 0
            self.forget()
            return anew, ""
        anew = now.st_ino != self._inode or now.st_size < self._read
        if anew:
            self._inode = now.st_ino
            self._read = 0
        if now.st_size == self._read or not self.path.is_file():
            return anew, ""
        whole = self._whole_lines()
        self._read += len(whole)
        return anew, whole.decode()

    def _whole_lines(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self._read)
            content = file.read(MAX_LOG + 1)
        if len(content) > MAX_LOG:
            raise UserError(f"{self.path} is larger than {MAX_LOG >> 20} MB: not a file of a run")
        whole = content[: content.rfind(b"\n") + 1]
        torn = self._table and whole.count(b'"') % 2  # a name with a line break is not whole yet
        return b"" if torn else whole


@dataclass(frozen=True)
class Additions:
    """What a look at a folder has found that was not there before."""

    documents: bool  # settings or metrics have changed
    log_anew: bool  # the log begins anew, so the lines are all that there are
    lines: Sequence[RoundLine]
    ledger_anew: bool
    entries: Sequence[LedgerEntry]

    def __bool__(self) -> bool:
        begun = self.log_anew or self.ledger_anew
        return self.documents or begun or bool(self.lines) or bool(self.entries)


NOTHING_ADDED = Additions(documents=False, log_anew=False, lines=(), ledger_anew=False, entries=())


class RunReader:
    """One run's folder, as far as it has been read."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.settings: dict[str, Any] = {}  # empty in a server's folder
        self.names = RunNames()
        self.settings_time = 0.0  # when they were written, seconds since 1970
        self.metrics: RunMetrics | None = None  # while the run is not finished
        self._metrics_time: float | None = None
        self._log = GrowingFile(self.folder.rounds)
        self._ledger = GrowingFile(self.folder.ledger, table=True)
        self._header: list[str] = []  # of the ledger

    def look(self) -> Additions:
        """Read what is new; a file that is not as a run writes it is named, and read again at the
        next look.
        """
        metrics_time = time_of_change(self.folder.metrics)
        if metrics_time is not None and metrics_time == self._metrics_time:
            return NOTHING_ADDED  # a finished run is not written to any more
        try:
            settings_changed = self._read_settings()
            metrics_changed = self._read_metrics(metrics_time)
            log_anew, lines = self._new_lines()
            ledger_anew, entries = self._new_entries()
        except UserError:
            self._log.forget()
            self._ledger.forget()
            raise
        self._metrics_time = metrics_time
        return Additions(
            documents=settings_changed or metrics_changed,
            log_anew=log_anew,
            lines=lines,
            ledger_anew=ledger_anew,
            entries=entries,
        )

    def _read_settings(self) -> bool:
        changed_at = time_of_change(self.folder.settings) or 0.0
        if changed_at == self.settings_time:
            return False
        self.settings = {}
        self.names = RunNames()
        if changed_at:
            settings = read_toml(self.folder.settings)
            with damage_told(self.folder.settings):
                self.names = RunNames.read(settings)
            self.settings = settings
        self.settings_time = changed_at
        return True

    def _read_metrics(self, changed_at: float | None) -> bool:
        self.metrics = None
        if changed_at is not None:
            self.metrics = read_metrics(self.folder.path)
        return changed_at != self._metrics_time

    def _new_lines(self) -> tuple[bool, list[RoundLine]]:
        with damage_told(self.folder.rounds):
            anew, text = self._log.added()
            return anew, [RoundLine.read(line) for line in parse_jsonl(text, self.folder.rounds)]

    def _new_entries(self) -> tuple[bool, list[LedgerEntry]]:
        with damage_told(self.folder.ledger):
            anew, text = self._ledger.added()
            if anew:
                self._header = []
            rows = parse_csv(text, self._header, self.folder.ledger)
            return anew, [ledger_entry(row) for row in rows]


def read_metrics(path: Path) -> RunMetrics:
    """The metrics of a finished run by its folder."""
    file = RunFolder(path).metrics
    document = read_json(file)
    with damage_told(file):
        return RunMetrics.read(document)


def read_stop_reason(path: Path) -> str:
    """When and why a run ended before its last round, by its folder; empty where nothing says
    so.
    """
    file = RunFolder(path).stopped
    if not file.is_file():
        return ""
    document = read_json(file)
    with damage_told(file):
        return f"{document['reason']} (stopped at {document['time']})"


def time_of_change(path: Path) -> float | None:
    """When a file was last written, seconds since 1970; None where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None

"""A run as an experiment tracker shows it: one setting (`track = "mlflow"`), one file per tracker.

`Tracking` is the only door. `RunFolder` passes through it what it writes down itself, so a run of
`feddraw run` and a federation on Flower are shown alike. A tracker that is not installed, or fails,
gives one warning, and the run goes on without it.

A tracker's file has a function of its name, which takes a `TrackedRun` and gives a `Tracker`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from feddraw import catalog
from feddraw.errors import UserError, in_one_line, unknown
from feddraw.results.metrics import SplitMetrics
from feddraw.results.round_log import RoundLine
from feddraw.server.ledger import LedgerEntry
from feddraw.system.file_reading import read_json
from feddraw.system.file_writing import write_json

TRACKED_FILE = "tracked.json"  # under which number a tracker knows the run of a folder
GROUP = "feddraw"  # the experiment (MLFlow) or project (W&B), unless the environment names one


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told before it is shown anything."""

    folder: Path  # the run's
    settings: Mapping[str, Any] = field(default_factory=dict)  # by dotted name
    number: str = ""  # that the tracker gave it, where an earlier try was shown to it
    first_round: int = 0  # the first that will be shown now


class Tracker(Protocol):
    """One run at a tracker."""

    @property
    def number(self) -> str:
        """What the tracker finds the run by."""

    def add(self, round: int, numbers: Mapping[str, float]) -> None:
        """Numbers of a round, by name; a round may come in parts, or again."""

    def add_files(self, name: str, files: Sequence[Path]) -> None:
        """Artefacts under one name: `model`, `report`."""

    def close(self, *, failed: bool) -> None: ...


def check_tracker(name: str) -> None:
    """Refuse a tracker that nobody knows."""
    if name and ":" not in name and name not in catalog.names("trackers"):
        raise unknown("trackers", name, catalog.names("trackers"))


class Tracking:
    """Shows the run of a folder to a tracker, from the first number on; without a name to none."""

    def __init__(self, name: str, folder: Path, settings: Mapping[str, Any]) -> None:
        self._name = name
        self._folder = folder
        self._settings = settings
        self._tracker: Tracker | None = None

    @property
    def works(self) -> bool:
        """Whether there is a tracker that has not failed."""
        return bool(self._name)

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if self._tracker is None:
            return
        try:
            self._tracker.close(failed=kind is not None)
        except Exception as error:
            self._give_up(error)
        self._tracker = None

    def add_line(self, line: RoundLine) -> None:
        """A round's line of the log."""
        self._add(line.round, numbers_of_line(line))

    def add_ledger(self, entries: Sequence[LedgerEntry]) -> None:
        """The weights of a round."""
        if entries:
            self._add(entries[0].round, numbers_of_ledger(entries))

    def add_files(self, name: str, files: Iterable[Path]) -> None:
        """Those of the files that are there, as artefacts."""
        there = [file for file in files if file.is_file()]
        if not self._name or not there:
            return
        try:
            self._opened(first_round=0).add_files(name, there)
        except Exception as error:
            self._give_up(error)

    def _add(self, round: int, numbers: Mapping[str, float]) -> None:
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        if not self._name or not finite:
            return
        try:
            self._opened(first_round=round).add(round, finite)
        except Exception as error:
            self._give_up(error)

    def _opened(self, first_round: int) -> Tracker:
        if self._tracker is None:
            known = read_tracked(self._folder)
            number = known[1] if known[0] == self._name else ""
            run = TrackedRun(self._folder, self._settings, number, first_round)
            self._tracker = catalog.find("trackers", self._name)(run)
            note = {"tracker": self._name, "number": self._tracker.number}
            if note != {"tracker": known[0], "number": known[1]}:
                write_json(self._folder / TRACKED_FILE, note)
        return self._tracker

    def _give_up(self, error: Exception) -> None:
        """A tracker is somebody else's program, perhaps on another machine: whatever it raises, the
        run is worth more.
        """
        why = str(error) if isinstance(error, UserError) else in_one_line(error)
        warnings.warn(f"{self._name} is shown nothing more of this run: {why}", stacklevel=4)
        self._name = ""


def read_tracked(folder: Path) -> tuple[str, str]:
    """Which tracker knows the run of a folder, and by what; both empty if none does."""
    file = folder / TRACKED_FILE
    note = read_json(file) if file.is_file() else {}
    return str(note.get("tracker", "")), str(note.get("number", ""))


def show_report(run: Path, files: Iterable[Path]) -> str:
    """Add a report to what a tracker has of a run; gives the tracker's name, or nothing where none
    knows the run. A tracker that is somebody's own code is not called: the folder may come from
    another party. That is also why only who asks for it (`feddraw report --track`) gets this far.
    """
    name, number = read_tracked(run)
    if not number or name not in catalog.names("trackers"):
        return ""
    with Tracking(name, run, {}) as tracking:
        tracking.add_files("report", files)
        return name if tracking.works else ""


def numbers_of_line(line: RoundLine) -> dict[str, float]:
    """Loss, all metrics of each split and finding, and what each site says of the model."""
    numbers = {"loss": line.loss}
    for name, split in (("validation", line.validation), ("test", line.test)):
        if split.evaluated:
            numbers |= _numbers_of_split(name, split)
    for site in line.evaluations:
        numbers |= {f"site/{site.client} {name}": v for name, v in site.metrics.items()}
    return numbers


def _numbers_of_split(name: str, split: SplitMetrics) -> dict[str, float]:
    undefined = sum(map(math.isnan, split.auc.per_class.values()))
    numbers = {f"{name}/findings without auc": float(undefined)}
    for metric, values in split.by_name.items():
        numbers[f"{name}/{metric}"] = values.macro
        numbers |= {f"{name}/{metric} {one}": value for one, value in values.per_class.items()}
    return numbers | {f"site/{site} {name}-auc": area for site, area in split.by_site.items()}


def numbers_of_ledger(entries: Sequence[LedgerEntry]) -> dict[str, float]:
    """Every client's weight and similarity, as far as the server sees them."""
    numbers = {}
    for entry in entries:
        for column, value in (("weight", entry.weight), ("similarity", entry.similarity)):
            if column not in entry.hidden:
                numbers[f"{column}/{entry.client}"] = value
    return numbers

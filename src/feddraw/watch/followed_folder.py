"""All runs at or below a folder followed while they grow, with the plans of studies there."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal

from feddraw.errors import UserError
from feddraw.results.find_runs import is_run_folder, walk_folders
from feddraw.system.file_reading import read_json
from feddraw.system.locks import locked_inodes
from feddraw.text import safe_line
from feddraw.watch.followed_run import FollowedRun

PLAN_FILE = re.compile(r"plan(-\d+-of-\d+)?\.json")
MOST_FOLLOWED_RUNS = 5_000
SEARCH_EVERY = 3.0  # seconds
LOOK_EVERY = 0.5  # seconds


@dataclass(frozen=True)
class PlannedState:
    """What a study's plan says of a run."""

    state: Literal["waiting", "failed"]
    why: str = ""


class FollowedFolder:
    """All runs at or below a folder, and the plans of studies there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.version = 0
        self.runs: dict[Path, FollowedRun] = {}
        self.planned: dict[str, PlannedState] = {}  # by name
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

    def _read_plans(self, paths: Sequence[Path]) -> dict[str, PlannedState]:
        """What plans say of runs, by name; a plan that is not as a study writes it says nothing."""
        planned: dict[str, PlannedState] = {}
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
                    planned[name] = PlannedState("failed", failed[name])
                else:
                    planned[name] = PlannedState("waiting")
        return planned

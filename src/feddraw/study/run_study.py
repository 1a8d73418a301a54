"""A study from its plan to its table: what is finished is skipped, what fails does not stop the
rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddraw.errors import RunFailed, UserError
from feddraw.experiment.run_preparation import open_experiment_data, prepare
from feddraw.experiment.settings import Experiment
from feddraw.study.plan import PlannedRun, data_key, is_file_data
from feddraw.study.progress import StudyEvent
from feddraw.study.results_table import ResultTable, results_row
from feddraw.study.worker_pool import WorkerPool
from feddraw.system.file_writing import make_folder, refuse_link, write_errors_told, write_whole
from feddraw.system.progress import Progress
from feddraw.training.devices import WorkerPlace

# Runs in a row that may fail for one cause before a study stops beginning others.
FAILURE_PATIENCE = 3


@dataclass(frozen=True)
class PlanOptions:
    """The file that tells `feddraw watch` what is still to come."""

    name: str = "plan.json"
    doubtful: Collection[str] = ()  # runs that will probably not be admitted


def run_study(
    runs: Sequence[PlannedRun],
    out: Path,
    workers: int | Sequence[WorkerPlace],
    tables: Sequence[ResultTable],
    progress: Progress | None = None,
    *,
    admit: Callable[[PlannedRun], bool] = lambda _: True,
    plan: PlanOptions = PlanOptions(),  # noqa: B008  (a value that never changes)
    patience: int = FAILURE_PATIENCE,
) -> Iterator[StudyEvent]:
    """Carry out what is not finished yet; tells of all that happens. A run that fails does not stop
    the others.

    `workers` is their number, or where each trains; a run that finds no memory there waits until
    fewer are left. Only when `patience` runs in a row have failed for the same cause are the rest
    left out (0: never).

    `progress` is told of images that are prepared before the first run. `admit` is asked before
    each run begins; one that it refuses is left out.
    """
    waiting = []
    for planned in runs:
        event = _done_before(planned, out, tables)
        if event is None:
            waiting.append(planned)
        else:
            yield event
    unusable = prepare_study_data(waiting, progress)
    for planned, reason in unusable.items():
        yield StudyEvent("failed", planned.name, reason)
    waiting = [planned for planned in waiting if planned not in unusable]
    places = [WorkerPlace()] * workers if isinstance(workers, int) else workers
    used = places[: len(waiting)]
    plan_file = _PlanFile(out / plan.name, runs, len(used), plan.doubtful)
    failures = RepeatedFailure(patience)
    pool = WorkerPool(out, used)
    try:
        for event in pool.run(waiting, lambda planned: not failures.hopeless and admit(planned)):
            plan_file.note(event)
            failures.note(event)
            if event.row is not None:
                _add_to_tables(tables, event.row)
            yield event
    finally:
        pool.stop()


def _add_to_tables(tables: Sequence[ResultTable], row: Mapping[str, Any]) -> None:
    for table in tables:
        table.add([row])


def _done_before(
    planned: PlannedRun, out: Path, tables: Sequence[ResultTable]
) -> StudyEvent | None:
    """What to say of a run for which there is nothing to do, or nothing that can be done; None for
    the others.
    """
    try:
        refuse_link(out / planned.name)
        if planned.is_finished(out):
            row = results_row(planned, out)
            _add_to_tables(tables, row)
            return StudyEvent("skipped", planned.name, row=row)
    except UserError as mistake:
        return StudyEvent("failed", planned.name, str(mistake))
    for table in tables:
        if planned.key in table.rows:
            return StudyEvent("skipped", planned.name, row=table.rows[planned.key])
    return None


def prepare_study_data(
    runs: Sequence[PlannedRun], progress: Progress | None
) -> dict[PlannedRun, str]:
    """Prepare each data set's images once, while there are no workers yet; gives the runs whose
    data cannot be opened.

    Synthetic images, and what a user's own function makes, are not kept on disk: workers make
    their own.
    """
    mistakes: dict[str, str] = {}
    unusable = {}
    for planned in runs:
        key = data_key(planned.completed)
        if key not in mistakes and is_file_data(planned):
            mistakes[key] = _data_mistake(planned.completed, progress)
        if mistakes.get(key):
            unusable[planned] = mistakes[key]
    _prepare_features([planned for planned in runs if planned not in unusable], progress)
    return unusable


def _prepare_features(runs: Sequence[PlannedRun], progress: Progress | None) -> None:
    """Compute the features of images in files that runs train on, by all cores, while there are no
    workers yet: those of the first run of each data set, network and scenario.

    A worker computes what other seeds need beside these, and meets any mistake again.
    """
    firsts: dict[str, PlannedRun] = {}
    for planned in runs:
        experiment = planned.completed
        if experiment.trains_on_features and is_file_data(planned):
            key = json.dumps([experiment.data, experiment.model, experiment.scenario])
            firsts.setdefault(key, planned)
    for planned in firsts.values():
        with suppress(UserError, RunFailed):
            prepare(planned.completed, progress=progress)


def _data_mistake(experiment: Experiment, progress: Progress | None) -> str:
    """What is wrong with an experiment's data; empty if they are ready."""
    try:
        open_experiment_data(experiment, progress)
    except (UserError, RunFailed) as mistake:
        return str(mistake)
    except Exception:
        return ""  # a worker will meet it again, and log it with its traceback
    return ""


class RepeatedFailure:
    """Notices when run after run fails for one cause: the next hundred would, too."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._cause = ""
        self._count = 0  # runs in a row that failed for it

    def note(self, event: StudyEvent) -> None:
        if event.kind == "finished":
            self._count = 0
        elif event.kind == "failed":
            without_names = re.sub(r"\d+", "#", event.text.replace(event.run, ""))
            cause = without_names.partition("; its traceback is in ")[0]
            self._count = self._count + 1 if cause == self._cause else 1
            self._cause = cause

    @property
    def hopeless(self) -> bool:
        """Whether as many have failed in a row as there is patience for."""
        return 0 < self._patience <= self._count


class _PlanFile:
    """What a study still has to do, for `feddraw watch` and others that read its folder."""

    def __init__(
        self, path: Path, runs: Sequence[PlannedRun], workers: int, doubtful: Collection[str]
    ) -> None:
        self._path = path
        self._plan: dict[str, Any] = {
            "runs": [planned.name for planned in runs],
            "workers": workers,
            "failed": {},
            "left_out": sorted(doubtful),
        }
        if workers:
            with write_errors_told(path):
                make_folder(path.parent)
            self._write()

    def note(self, event: StudyEvent) -> None:
        failed = self._plan["failed"]
        left_out = self._plan["left_out"]
        if event.kind == "failed":
            failed[event.run] = event.text
        elif event.kind == "left out" and event.run not in left_out:
            left_out.append(event.run)
        elif event.kind == "started" and event.run in left_out:
            left_out.remove(event.run)
        else:
            return
        self._write()

    def _write(self) -> None:
        write_whole(self._path, (json.dumps(self._plan, indent=1) + "\n").encode())

"""The worker processes of a study, each with the serial engine on one thread: no core has more than
one to do.
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import torch

from feddraw.data.dataset import Dataset
from feddraw.errors import OutOfMemory, RunFailed, UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.device_placement import on_device
from feddraw.experiment.run_preparation import open_experiment_data
from feddraw.experiment.running import iterate
from feddraw.experiment.settings import Experiment
from feddraw.study.plan import PlannedRun, data_key
from feddraw.study.progress import StudyEvent
from feddraw.study.results_table import results_row
from feddraw.system.file_writing import append_to_log
from feddraw.system.locks import lock_file
from feddraw.system.progress import Progress
from feddraw.system.workers import Worker, WorkerDied, stop_workers, wait_for_replies
from feddraw.training.device_memory import allot_image_memory, empty_device_cache
from feddraw.training.devices import WorkerPlace

Admit = Callable[[PlannedRun], bool]

REPORT_INTERVAL = 0.5  # seconds between two reports of a worker


# ---------------------------------------------------------------------------- what a worker is told


@dataclass(frozen=True)
class RunRequest:
    """A run to carry out."""

    experiment: Experiment
    folder: Path


@dataclass(frozen=True)
class RunReport:
    """What a run is doing, and the share of it that is done."""

    now: str
    done: float


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended."""

    kind: Literal["finished", "failed", "no memory"]
    text: str = ""
    traceback: str = ""  # where the cause is nobody's mistake


# ----------------------------------------------------------------------------------------- the pool


class WorkerPool:
    """Worker processes, each with at most one run; one that dies is replaced and its run fails.

    One that has no memory for its run ends, and the run waits for the others on its device; the
    last of them may not.
    """

    def __init__(self, out: Path, places: Sequence[WorkerPlace]) -> None:
        self.out = out
        self._workers = {Worker(serve_runs, place): place for place in places}
        self._busy: dict[Worker, PlannedRun] = {}
        self._waiting: list[PlannedRun] = []  # the next one last

    def run(self, runs: Sequence[PlannedRun], admit: Admit) -> Iterator[StudyEvent]:
        """Carry out all runs that `admit` lets begin; tells of all that happens."""
        self._waiting = list(reversed(runs))
        while self._waiting or self._busy:
            idle = [worker for worker in self._workers if worker not in self._busy]
            for worker in idle:
                yield from self._next(worker, admit)
            if self._busy:
                for worker in wait_for_replies(self._busy):
                    yield from self._receive(worker, admit)

    def _next(self, worker: Worker, admit: Admit) -> Iterator[StudyEvent]:
        """The next run that may begin goes to this worker."""
        while self._waiting and worker in self._workers and worker not in self._busy:
            planned = self._waiting.pop()
            if admit(planned):
                yield self._begin(worker, planned)
            else:
                yield StudyEvent("left out", planned.name)

    def _begin(self, worker: Worker, planned: PlannedRun) -> StudyEvent:
        try:
            worker.send(RunRequest(planned.experiment, self.out / planned.name))
        except WorkerDied:  # since its last run
            self._replace(worker)
            self._waiting.append(planned)
            return StudyEvent("progress", planned.name, "waits: its worker had died")
        self._busy[worker] = planned
        return StudyEvent("started", planned.name)

    def _receive(self, worker: Worker, admit: Admit) -> Iterator[StudyEvent]:
        planned = self._busy[worker]
        try:
            answer: RunReport | RunOutcome = worker.receive()
        except WorkerDied as death:
            del self._busy[worker]
            self._replace(worker)
            yield StudyEvent("failed", planned.name, f"its worker {death.how}{death.advice}")
            return
        if isinstance(answer, RunReport):
            yield StudyEvent("progress", planned.name, answer.now, answer.done)
            return
        del self._busy[worker]
        if answer.kind == "finished":
            begun = list(self._next(worker, admit))  # it trains while we read what it wrote
            yield self._finished(planned)
            yield from begun
        elif answer.kind == "no memory":
            yield self._let_go(worker, planned, answer.text)
        else:
            where = self._logged(planned, answer.traceback) if answer.traceback else ""
            yield StudyEvent("failed", planned.name, answer.text + where)

    def _finished(self, planned: PlannedRun) -> StudyEvent:
        try:
            row = results_row(planned, self.out)
        except UserError as mistake:
            return StudyEvent("failed", planned.name, str(mistake))
        return StudyEvent("finished", planned.name, done=1.0, row=row)

    def _logged(self, planned: PlannedRun, trace: str) -> str:
        """Where the traceback was written, or why it could not be."""
        log = self.out / "failures.log"
        try:
            with lock_file(log):
                append_to_log(log, f"{planned.name}\n{trace}\n")
        except (UserError, RunFailed) as trouble:
            return f"; {trouble}"
        return f"; its traceback is in {log}"

    def _let_go(self, worker: Worker, planned: PlannedRun, shortage: str) -> StudyEvent:
        """End a worker that had no memory, if there are others on its device, and keep its run for
        them.
        """
        device = self._workers[worker].device
        count = sum(place.device == device for place in self._workers.values())
        if count == 1:
            return StudyEvent("failed", planned.name, shortage)
        del self._workers[worker]
        stop_workers([worker])
        self._waiting.append(planned)
        waits = f"waits: {device} has no memory for {count} runs at once"
        return StudyEvent("progress", planned.name, waits)

    def _replace(self, dead: Worker) -> None:
        place = self._workers.pop(dead)
        self._workers[Worker(serve_runs, place)] = place

    def stop(self) -> None:
        """End all workers."""
        stop_workers(list(self._workers))


# --------------------------------------------------------------------------------------- the worker


def serve_runs(pipe: Connection, place: WorkerPlace) -> None:
    """The main loop of a worker process: one run after the other until the pipe closes."""
    allot_image_memory(place)
    warnings.simplefilter("ignore")  # what is undefined is in metrics.json, and said in the report
    opened: dict[str, Dataset] = {}
    with suppress(EOFError, OSError):  # the parent has closed the pipe
        while True:
            request: RunRequest = pipe.recv()
            pipe.send(_carry_out(request, place.device, opened, _Reporter(pipe)))


class _Reporter:
    """Tells the parent what a run is doing, now and then."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._last = 0.0

    def __call__(self, what: str, ready: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last > REPORT_INTERVAL or not self._last:
            self._last = now
            self._pipe.send(RunReport(what, ready / max(total, 1)))


def _carry_out(
    request: RunRequest, device: str, opened: dict[str, Dataset], progress: Progress
) -> RunOutcome:
    try:
        planned = replace(request.experiment, engine="serial", workers=0)
        experiment = complete_settings(on_device(planned, device))
        dataset = _open_data(experiment, opened, progress)
        rounds = iterate(
            experiment, request.folder, resume=True, dataset=dataset, progress=progress
        )
        for _ in rounds:
            pass
    except OutOfMemory as shortage:
        return RunOutcome("no memory", str(shortage))
    except (UserError, RunFailed) as mistake:
        return RunOutcome("failed", str(mistake))
    except Exception as error:
        return RunOutcome("failed", f"{type(error).__name__}: {error}", traceback.format_exc())
    finally:
        empty_device_cache(torch.device(device))  # the next run may need it in other pieces
    return RunOutcome("finished")


def _open_data(experiment: Experiment, opened: dict[str, Dataset], progress: Progress) -> Dataset:
    """The data of the run; the last ones stay open, since most runs of a study share them."""
    key = data_key(experiment)
    if key not in opened:
        while len(opened) > 1:
            del opened[next(iter(opened))]
        opened[key] = open_experiment_data(experiment, progress)
    return opened[key]

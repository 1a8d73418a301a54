"""The worker processes of a study, each with the serial engine on one thread: no core has more than
one to do.
"""

from __future__ import annotations

import json
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from feddraw.data.dataset import Dataset
from feddraw.errors import OutOfMemory, RunFailed, UserError
from feddraw.experiment.device_placement import on_device
from feddraw.experiment.run_preparation import open_experiment_data
from feddraw.experiment.running import iterate
from feddraw.experiment.settings import Experiment, complete
from feddraw.study.plan import PlannedRun, data_key
from feddraw.study.progress import StudyEvent
from feddraw.study.results_table import results_row
from feddraw.system.file_writing import append_to_log
from feddraw.system.locks import lock_file
from feddraw.system.workers import belong_to_parent, cause_of_death, start_worker, stop_workers
from feddraw.training.device_memory import allot_image_memory, empty_device_cache
from feddraw.training.devices import WorkerPlace


class WorkerPool:
    """Worker processes, each with at most one run; one that dies is replaced and its run counted as
    failed.

    One that has no memory for its run ends, and the run waits for the others on its device; the
    last of them may not.
    """

    def __init__(self, out: Path, places: Sequence[WorkerPlace]) -> None:
        self.out = out
        self._processes: dict[Connection, SpawnProcess] = {}
        self._places: dict[Connection, WorkerPlace] = {}
        self._busy: dict[Connection, PlannedRun] = {}
        self._waiting: list[PlannedRun] = []
        for place in places:
            self._start(place)

    def _start(self, place: WorkerPlace) -> None:
        pipe, process = start_worker(serve_runs, place)
        self._processes[pipe] = process
        self._places[pipe] = place

    def run(
        self, runs: Sequence[PlannedRun], admit: Callable[[PlannedRun], bool]
    ) -> Iterator[StudyEvent]:
        """Carry out all runs that `admit` lets begin; tells of all that happens."""
        self._waiting = list(reversed(runs))
        while self._waiting or self._busy:
            idle = [pipe for pipe in self._processes if pipe not in self._busy]
            for pipe in idle:
                yield from self._next(pipe, admit)
            if self._busy:
                for ready in wait(list(self._busy)):
                    assert isinstance(ready, Connection)
                    yield from self._receive(ready, admit)

    def _next(self, pipe: Connection, admit: Callable[[PlannedRun], bool]) -> Iterator[StudyEvent]:
        while self._waiting and pipe in self._processes and pipe not in self._busy:
            planned = self._waiting.pop()
            if admit(planned):
                yield self._begin(pipe, planned)
            else:
                yield StudyEvent("left out", planned.name)

    def _begin(self, pipe: Connection, planned: PlannedRun) -> StudyEvent:
        self._busy[pipe] = planned
        request = {"experiment": planned.experiment.table(), "folder": str(self.out / planned.name)}
        try:
            pipe.send_bytes(json.dumps(request).encode())
        except OSError:  # it has died since its last run
            self._replace(pipe)
            self._waiting.append(planned)
            return StudyEvent("progress", planned.name, "waits: its worker had died")
        return StudyEvent("started", planned.name)

    def _receive(
        self, pipe: Connection, admit: Callable[[PlannedRun], bool]
    ) -> Iterator[StudyEvent]:
        planned = self._busy[pipe]
        try:
            answer = json.loads(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            yield self._replace(pipe)
            return
        if "progress" in answer:
            what, share = answer["progress"]
            yield StudyEvent("progress", planned.name, what, share)
            return
        del self._busy[pipe]
        if "finished" in answer:
            begun = list(self._next(pipe, admit))  # the worker trains while we read what it wrote
            yield self._finished(planned)
            yield from begun
        elif "full" in answer:
            yield self._let_go(pipe, planned, answer["full"])
        else:
            where = self._logged(planned, answer["traceback"]) if "traceback" in answer else ""
            yield StudyEvent("failed", planned.name, answer["failed"] + where)

    def _finished(self, planned: PlannedRun) -> StudyEvent:
        try:
            return StudyEvent(
                "finished", planned.name, done=1.0, row=results_row(planned, self.out)
            )
        except UserError as mistake:
            return StudyEvent("failed", planned.name, str(mistake))

    def _logged(self, planned: PlannedRun, trace: str) -> str:
        """Where the traceback was written, or why it could not be."""
        log = self.out / "failures.log"
        try:
            with lock_file(log):
                append_to_log(log, f"{planned.name}\n{trace}\n")
        except (UserError, RunFailed) as trouble:
            return f"; {trouble}"
        return f"; its traceback is in {log}"

    def _let_go(self, pipe: Connection, planned: PlannedRun, shortage: str) -> StudyEvent:
        """End a worker that had no memory, if there are others on its device, and keep its run for
        them.
        """
        device = self._places[pipe].device
        workers = sum(place.device == device for place in self._places.values())
        if workers == 1:
            return StudyEvent("failed", planned.name, shortage)
        del self._places[pipe]
        stop_workers([(pipe, self._processes.pop(pipe))])
        self._waiting.append(planned)
        waits = f"waits: {device} has no memory for {workers} runs at once"
        return StudyEvent("progress", planned.name, waits)

    def _replace(self, pipe: Connection) -> StudyEvent:
        """Start another worker where one has died."""
        planned = self._busy.pop(pipe)
        how, advice = cause_of_death(self._processes.pop(pipe))
        self._start(self._places.pop(pipe))
        return StudyEvent("failed", planned.name, f"its worker {how}{advice}")

    def stop(self) -> None:
        """End all workers."""
        stop_workers(self._processes.items())


def serve_runs(pipe: Connection, place: WorkerPlace) -> None:
    """The main loop of a worker process: one run after the other until the pipe closes."""
    belong_to_parent()
    allot_image_memory(place)
    warnings.simplefilter("ignore")  # what is undefined is in metrics.json, and said in the report
    opened: dict[str, Dataset] = {}
    try:
        while True:
            request = json.loads(pipe.recv_bytes())
            pipe.send_bytes(json.dumps(_carry_out_run(pipe, request, opened, place)).encode())
    except (EOFError, OSError):
        pass  # the parent has closed the pipe


def _carry_out_run(
    pipe: Connection, request: Any, opened: dict[str, Dataset], place: WorkerPlace
) -> dict[str, Any]:
    last = 0.0

    def progress(what: str, ready: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 0.5 or not last:
            last = now
            pipe.send_bytes(json.dumps({"progress": [what, ready / max(total, 1)]}).encode())

    try:
        planned = replace(Experiment.of(request["experiment"]), engine="serial", workers=0)
        experiment = complete(on_device(planned, place.device))
        dataset = _worker_data(experiment, opened, progress)
        rounds = iterate(
            experiment, request["folder"], resume=True, dataset=dataset, progress=progress
        )
        for _ in rounds:
            pass
    except OutOfMemory as shortage:
        return {"full": str(shortage)}
    except (UserError, RunFailed) as mistake:
        return {"failed": str(mistake)}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    finally:
        empty_device_cache(torch.device(place.device))  # the next run may need it in other pieces
    return {"finished": True}


def _worker_data(experiment: Experiment, opened: dict[str, Dataset], progress: Any) -> Dataset:
    """The data of the run; the last ones stay open, since most runs of a study share them."""
    key = data_key(experiment)
    if key not in opened:
        while len(opened) > 1:
            del opened[next(iter(opened))]
        opened[key] = open_experiment_data(experiment, progress)
    return opened[key]

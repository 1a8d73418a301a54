"""How long a run will take on this machine, from a few timed training steps.

Runs are timed on their own data, at their own settings; for a time before there are any data see
`rehearsal`. As many processes as will train are timed at once, because cores share memory and
caches.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from statistics import fmean
from typing import Any

from feddraw.core import Job, Memory
from feddraw.engines.serial import Serial
from feddraw.errors import OutOfMemory, RunFailed, UserError
from feddraw.experiment import run_preparation
from feddraw.experiment.device_placement import on_device
from feddraw.experiment.run_progress import images_to_evaluate
from feddraw.experiment.settings import Experiment
from feddraw.system.workers import belong_to_parent, cause_of_death, start_worker, stop_workers
from feddraw.training.device_memory import allot_image_memory, memory_shortage_told
from feddraw.training.devices import WorkerPlace
from feddraw.training.loop import steps_in_round

TIMED_SECONDS = 1.0  # seconds of training that are timed, as far as steps are short enough
FEWEST_TIMED_STEPS, MOST_TIMED_STEPS = 3, 40  # steps that are timed
TIMED_IMAGES = 512  # images that are timed, of a larger set


@dataclass(frozen=True)
class RunTimeEstimate:
    """What a run costs, in seconds."""

    step: float  # one training step
    evaluated_image: float
    whole: float  # the run, with what comes before its first step


def estimate_run_times(
    experiments: Sequence[Experiment], places: Sequence[WorkerPlace]
) -> list[RunTimeEstimate]:
    """An estimate for each experiment, with a run at each place at once; these share their data."""
    request = json.dumps([experiment.table() for experiment in experiments])
    found = estimate_by_workers(
        [start_worker(serve_run_timing, request, place) for place in places]
    )
    names = [field.name for field in fields(RunTimeEstimate)]
    by_experiment = zip(*found, strict=True)
    return [
        RunTimeEstimate(*(fmean(one[name] for one in times) for name in names))
        for times in by_experiment
    ]


def estimate_by_workers(
    team: Sequence[tuple[Connection, SpawnProcess]],
) -> list[list[dict[str, Any]]]:
    """What each worker has timed, in JSON; all of them end, and a mistake that one tells is
    raised.
    """
    try:
        return [_estimate_by_worker(*worker) for worker in team]
    finally:
        stop_workers(team)


def _estimate_by_worker(pipe: Connection, process: SpawnProcess) -> list[dict[str, Any]]:
    try:
        said = json.loads(pipe.recv_bytes())
    except (EOFError, ConnectionResetError):
        how, advice = cause_of_death(process)
        raise RunFailed(f"a worker {how} while timing training steps{advice}") from None
    if "mistake" in said:
        raise UserError(said["mistake"])
    return list(said["timed"])


def serve_run_timing(pipe: Connection, request: str, place: WorkerPlace) -> None:
    """What a worker does: time one experiment after the other."""
    belong_to_parent()
    allot_image_memory(place)
    warnings.simplefilter("ignore")
    experiments = [Experiment.of(table) for table in json.loads(request)]
    try:
        dataset = run_preparation.open_experiment_data(experiments[0])
        said: dict[str, Any] = {"timed": []}
        for experiment in experiments:
            began = time.perf_counter()
            alone = on_device(replace(experiment, engine="serial"), place.device)
            setup = run_preparation.prepare(alone, dataset=dataset)
            with memory_shortage_told(setup.trainer):
                said["timed"].append(asdict(estimate_run_time(setup, time.perf_counter() - began)))
    except (UserError, OutOfMemory) as mistake:
        said = {"mistake": str(mistake)}
    pipe.send_bytes(json.dumps(said).encode())


def estimate_run_time(setup: run_preparation.PreparedRun, opening: float = 0.0) -> RunTimeEstimate:
    """Time a few steps and an evaluation of what has been prepared; its trainer cannot be used
    afterwards.
    """
    step, client = _time_training(setup)
    image = _time_evaluation(setup)
    return RunTimeEstimate(step, image, opening + RunWork.of(setup).seconds(step, client, image))


@dataclass(frozen=True)
class RunWork:
    """How much a run has to do."""

    steps: float  # of training; a batch that is not full counts by its share
    jobs: int  # clients that are asked, in all rounds
    evaluated: int  # images

    def seconds(self, step: float, client: float, evaluated_image: float) -> float:
        """From those of a step, of a client's work beside its steps, and of an evaluated image."""
        return step * self.steps + client * self.jobs + evaluated_image * self.evaluated

    @staticmethod
    def of(task: run_preparation.PreparedTask) -> RunWork:
        sizes, training = [len(rows) for rows in task.training_rows], task.experiment.training
        rounds = range(task.experiment.rounds)
        efforts = [task.efforts(round) for round in rounds]
        asked = [(sizes[client], effort) for each in efforts for client, effort in each.items()]
        steps = sum(
            steps_in_round(n, training, effort) * min(1.0, n / training.batch_size)
            for n, effort in asked
        )
        evaluated = sum(images_to_evaluate(task, final=round == rounds[-1]) for round in rounds)
        return RunWork(steps, len(asked), evaluated)


def _time_training(setup: run_preparation.PreparedRun) -> tuple[float, float]:
    """Seconds of a training step, and of a client's work beside its steps."""
    trainer, experiment, method = setup.trainer, setup.experiment, setup.method
    client = max(setup.efforts(0), key=lambda one: len(setup.training_rows[one]))
    broadcast = method.broadcast(method.init(setup.initial))
    job = Job(0, experiment.rounds, client, 0, setup.initial, broadcast)

    def work(steps: int, remembered: Memory) -> tuple[float, Memory]:
        trainer.training = replace(experiment.training, steps=steps)
        began = time.perf_counter()
        learnt = trainer.work(job, remembered)[1]
        return time.perf_counter() - began, learnt

    # The first step allocates memory and chooses algorithms; some rules do more once they have a
    # round behind them.
    _, memory = work(1, {})
    short, _ = work(1, memory)
    count = min(
        MOST_TIMED_STEPS, max(FEWEST_TIMED_STEPS, math.ceil(TIMED_SECONDS / max(short, 1e-6)))
    )
    step = max((work(1 + count, memory)[0] - short) / count, 1e-6)
    return step, max(0.0, short - step)


def _time_evaluation(setup: run_preparation.PreparedRun) -> float:
    """Seconds per image, with the metrics where the validation images are few enough to be
    evaluated whole.
    """
    engine, model, rows = Serial(setup.trainer), setup.initial, setup.dataset.rows["validation"]
    engine.predict(model, rows[:8])
    began = time.perf_counter()
    if len(rows) <= TIMED_IMAGES:
        setup.evaluator.after_a_round(engine, [model], ("validation",))
    else:
        engine.predict(model, rows[:TIMED_IMAGES])
    return (time.perf_counter() - began) / max(1, min(len(rows), TIMED_IMAGES))

"""How long a run will take on this machine, from a few timed training steps and evaluations at its own settings.

As many processes as will train are timed at once, because cores share memory and caches.
"""

from __future__ import annotations

import json
import math
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from feddraw.core import Job, Memory
from feddraw.engines.serial import Serial
from feddraw.errors import OutOfMemory, RunFailed, UserError
from feddraw.experiment.device_placement import on_device
from feddraw.experiment.run_preparation import Setup, Task, open_data, prepare
from feddraw.experiment.run_progress import evaluation_cost
from feddraw.experiment.settings import Experiment
from feddraw.system.workers import belong_to_parent, cause_of_death, start_worker, stop_workers
from feddraw.training.client import shortage_told
from feddraw.training.devices import Place, allot
from feddraw.training.loop import steps_of

ENOUGH = 1.0  # seconds of training that are timed, as far as steps are short enough
FEWEST, MOST = 3, 40  # steps that are timed
EVALUATED = 512  # images that are timed, of a larger set


@dataclass(frozen=True)
class Estimate:
    """What a run costs, in seconds."""

    step: float  # one training step
    evaluated_image: float
    whole: float  # the run, with what comes before its first step


def measure(experiments: Sequence[Experiment], places: Sequence[Place]) -> list[Estimate]:
    """An estimate for each experiment, with a run at each place at once; these share their data."""
    request = json.dumps([experiment.table() for experiment in experiments])
    found = answers([start_worker(serve, request, place) for place in places])
    return [_mean(one) for one in zip(*found, strict=True)]


def _mean(found: Sequence[Mapping[str, float]]) -> Estimate:
    return Estimate(**{name: statistics.fmean(one[name] for one in found) for name in found[0]})


def answers(team: Sequence[tuple[Connection, SpawnProcess]]) -> list[list[dict[str, Any]]]:
    """What each worker has timed, in JSON; all of them end, and a mistake that one tells is raised."""
    try:
        return [_heard(pipe, process) for pipe, process in team]
    finally:
        stop_workers(team)


def _heard(pipe: Connection, process: SpawnProcess) -> list[dict[str, Any]]:
    try:
        said = json.loads(pipe.recv_bytes())
    except (EOFError, ConnectionResetError):
        how, advice = cause_of_death(process)
        raise RunFailed(f"a worker {how} while timing training steps{advice}") from None
    if "mistake" in said:
        raise UserError(said["mistake"])
    return list(said["timed"])


def serve(pipe: Connection, request: str, place: Place) -> None:
    """What a worker does: time one experiment after the other."""
    belong_to_parent()
    allot(place)
    warnings.simplefilter("ignore")
    experiments = [Experiment.of(table) for table in json.loads(request)]
    try:
        dataset = open_data(experiments[0])
        said: dict[str, Any] = {"timed": []}
        for experiment in experiments:
            began = time.perf_counter()
            setup = prepare(on_device(replace(experiment, engine="serial"), place.device), dataset=dataset)
            with shortage_told(setup.trainer):
                said["timed"].append(asdict(timed(setup, time.perf_counter() - began)))
    except (UserError, OutOfMemory) as mistake:
        said = {"mistake": str(mistake)}
    pipe.send_bytes(json.dumps(said).encode())


def timed(setup: Setup, opening: float = 0.0) -> Estimate:
    """Time a few steps and an evaluation of what has been prepared; its trainer is of no use afterwards."""
    step, client = _time_training(setup)
    image = _time_evaluation(setup)
    return Estimate(step, image, opening + Work.of(setup).seconds(step, client, image))


@dataclass(frozen=True)
class Work:
    """How much a run has to do."""

    steps: float  # of training; a batch that is not full counts by its share
    jobs: int  # clients that are asked, in all rounds
    evaluated: int  # images

    def seconds(self, step: float, client: float, evaluated_image: float) -> float:
        """From those of a step, of a client's work beside its steps, and of an evaluated image."""
        return step * self.steps + client * self.jobs + evaluated_image * self.evaluated

    @staticmethod
    def of(task: Task) -> Work:
        sizes, training = [len(rows) for rows in task.training_rows], task.experiment.training
        rounds = range(task.experiment.rounds)
        efforts = [task.efforts(round) for round in rounds]
        steps = sum(
            steps_of(sizes[one], training, effort) * min(1.0, sizes[one] / training.batch_size)
            for asked in efforts
            for one, effort in asked.items()
        )
        evaluated = sum(evaluation_cost(task, final=round == rounds[-1]) for round in rounds)
        return Work(steps, sum(map(len, efforts)), evaluated)


def _time_training(setup: Setup) -> tuple[float, float]:
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

    # The first step allocates memory and chooses algorithms; some rules do more once they have a round behind them.
    _, memory = work(1, {})
    short, _ = work(1, memory)
    count = min(MOST, max(FEWEST, math.ceil(ENOUGH / max(short, 1e-6))))
    step = max((work(1 + count, memory)[0] - short) / count, 1e-6)
    return step, max(0.0, short - step)


def _time_evaluation(setup: Setup) -> float:
    """Seconds per image, with the metrics where the validation images are few enough to be evaluated whole."""
    engine, model, rows = Serial(setup.trainer), setup.initial, setup.dataset.rows["validation"]
    engine.predict(model, rows[:8])
    began = time.perf_counter()
    if len(rows) <= EVALUATED:
        setup.evaluator.after_a_round(engine, [model], ("validation",))
    else:
        engine.predict(model, rows[:EVALUATED])
    return (time.perf_counter() - began) / max(1, min(len(rows), EVALUATED))

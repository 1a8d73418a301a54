"""How long a run will take on this machine, from a few timed training steps and evaluations at its own settings.

As many processes as will train are timed at once, because cores share memory and caches.
"""

from __future__ import annotations

import json
import math
import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from feddraw.core import Job
from feddraw.engines.serial import Serial
from feddraw.errors import RunFailed, UserError
from feddraw.experiment.meter import evaluation_cost
from feddraw.experiment.preparation import Setup, open_data, prepare
from feddraw.experiment.settings import Experiment
from feddraw.system.workers import belong_to_parent, cause_of_death, start_worker
from feddraw.training.loop import steps_of

ENOUGH = 1.0  # seconds of training that are timed, as far as steps are short enough
FEWEST, MOST = 3, 40  # steps that are timed
EVALUATED = 512  # images that are timed, of a larger set


@dataclass(frozen=True)
class Estimate:
    """What a run costs, in seconds."""

    opening: float  # from the data to the first step
    step: float  # one training step
    client: float  # what a client's work takes beside its steps
    evaluated_image: float
    whole: float  # the run


def measure(experiments: Sequence[Experiment], workers: int) -> list[Estimate]:
    """An estimate for each experiment, with so many runs at once; these share their data."""
    request = json.dumps([experiment.table() for experiment in experiments])
    team = [start_worker(serve, request) for _ in range(workers)]
    try:
        found = [_heard(pipe, process) for pipe, process in team]
    finally:
        for pipe, process in team:
            pipe.close()
            process.terminate()
        for _, process in team:
            process.join()
    return [_mean([Estimate(**one[place]) for one in found]) for place in range(len(experiments))]


def _heard(pipe: Connection, process: Any) -> list[dict[str, float]]:
    try:
        said = json.loads(pipe.recv_bytes())
    except (EOFError, ConnectionResetError):
        how, advice = cause_of_death(process)
        raise RunFailed(f"a worker {how} while timing training steps{advice}") from None
    if "mistake" in said:
        raise UserError(said["mistake"])
    found: list[dict[str, float]] = said["estimates"]
    return found


def _mean(found: Sequence[Estimate]) -> Estimate:
    columns = [asdict(one) for one in found]
    return Estimate(**{name: statistics.fmean(column[name] for column in columns) for name in columns[0]})


def serve(pipe: Connection, request: str) -> None:
    """What a worker does: time one experiment after the other."""
    belong_to_parent()
    warnings.simplefilter("ignore")
    experiments = [Experiment.of(table) for table in json.loads(request)]
    try:
        dataset = open_data(experiments[0])
        said: dict[str, Any] = {"estimates": []}
        for experiment in experiments:
            began = time.perf_counter()
            setup = prepare(replace(experiment, engine="serial"), dataset=dataset)
            said["estimates"].append(asdict(timed(setup, time.perf_counter() - began)))
    except UserError as mistake:
        said = {"mistake": str(mistake)}
    pipe.send_bytes(json.dumps(said).encode())


def timed(setup: Setup, opening: float = 0.0) -> Estimate:
    """Time a few steps and an evaluation of what has been prepared; its trainer is of no use afterwards."""
    step, client = _time_training(setup)
    image = _time_evaluation(setup)
    sizes = [len(rows) for rows in setup.training_rows]
    training = setup.experiment.training
    rounds = range(setup.experiment.rounds)
    efforts = [setup.efforts(round) for round in rounds]
    steps = sum(
        steps_of(sizes[one], training, effort) * min(1.0, sizes[one] / training.batch_size)
        for asked in efforts
        for one, effort in asked.items()
    )
    evaluations = sum(evaluation_cost(setup, final=round == rounds[-1]) for round in rounds)
    whole = opening + step * steps + client * sum(map(len, efforts)) + image * evaluations
    return Estimate(opening, step, client, image, whole)


def _time_training(setup: Setup) -> tuple[float, float]:
    """Seconds of a training step, and of a client's work beside its steps."""
    trainer, experiment, method = setup.trainer, setup.experiment, setup.method
    client = max(setup.efforts(0), key=lambda one: len(setup.training_rows[one]))
    broadcast = method.broadcast(method.init(setup.initial))
    job = Job(0, experiment.rounds, client, 0, setup.initial, broadcast)

    def work(steps: int) -> float:
        trainer.training = replace(experiment.training, steps=steps)
        began = time.perf_counter()
        trainer.work(job, {})
        return time.perf_counter() - began

    work(1)  # the first step allocates memory and chooses algorithms
    short = work(1)
    count = min(MOST, max(FEWEST, math.ceil(ENOUGH / max(short, 1e-6))))
    step = max((work(1 + count) - short) / count, 1e-6)
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

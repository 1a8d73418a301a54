"""What a run will take, from steps and evaluations that are timed on what it has prepared."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from feddraw.engines.serial import Serial
from feddraw.experiment.device_placement import on_device
from feddraw.experiment.run_preparation import PreparedRun, open_experiment_data, prepare
from feddraw.experiment.settings import Experiment
from feddraw.study.cost import RunEstimate, RunWork, StepCost, mean_cost
from feddraw.study.timed_client import TimedClient
from feddraw.study.timing_at_places import measure_at_every_place
from feddraw.training.device_memory import memory_shortage_told
from feddraw.training.devices import WorkerPlace

TIMED_SECONDS = 1.0  # seconds of training that are timed, as far as steps are short enough
FEWEST_TIMED_STEPS = 3
MOST_TIMED_STEPS = 40
TIMED_IMAGES = 512  # images whose evaluation is timed, of a larger set


def time_prepared_run(setup: PreparedRun) -> StepCost:
    """Time a few whole batches and an evaluation of what has been prepared; its trainer cannot be
    used afterwards.
    """
    sizes = {client: len(setup.training_rows[client]) for client in setup.efforts(0)}
    largest = max(sizes, key=lambda client: sizes[client])
    client = TimedClient(setup.trainer, setup.method, setup.initial, largest)
    batch = setup.experiment.training.batch_size
    # The first step allocates memory and chooses algorithms; some rules do more once they have a
    # round behind them.
    client.work(batch, 1)
    single = client.work(batch, 1)
    wanted = math.ceil(TIMED_SECONDS / max(single, 1e-6))
    steps = min(MOST_TIMED_STEPS, max(FEWEST_TIMED_STEPS, wanted))
    step = client.steps_after(single, batch, steps)
    memory = client.memory()
    return StepCost(
        step=step,
        batch=batch,
        client=max(0.0, single - step),
        evaluated_image=_time_evaluation(setup),
        memory=memory,
        timed_memory=memory,
    )


def _time_evaluation(setup: PreparedRun) -> float:
    """Seconds per image, with the metrics where the validation images are few enough to be
    evaluated whole.
    """
    engine = Serial(setup.trainer)
    rows = setup.dataset.rows["validation"]
    engine.predict(setup.initial, rows[:8])
    began = time.perf_counter()
    if len(rows) <= TIMED_IMAGES:
        setup.evaluator.after_a_round(engine, [setup.initial], ("validation",))
    else:
        engine.predict(setup.initial, rows[:TIMED_IMAGES])
    return (time.perf_counter() - began) / max(1, min(len(rows), TIMED_IMAGES))


def estimate_run(setup: PreparedRun, opening: float = 0.0) -> RunEstimate:
    """Time what has been prepared; `opening` are the seconds that preparing it took."""
    return RunEstimate(
        cost=time_prepared_run(setup),
        opening=opening,
        work=RunWork.of_task(setup),
        first_round=RunWork.of_task(setup, rounds=1),
        rounds=setup.experiment.rounds,
        notes=(*_left_out_sites(setup), *setup.class_notes()),
    )


def _left_out_sites(setup: PreparedRun) -> Iterator[str]:
    """A line with the sites that are too small to be clients."""
    sites = setup.dataset.labels.sites
    if sites is None or setup.experiment.section("scenario")[0] != "by_site":
        return
    images = Counter(sites[setup.dataset.rows["train"]].tolist())
    clients = {shard.client for shard in setup.partition.shards}
    small = {site: count for site, count in sorted(images.items()) if site not in clients}
    if small:
        listed = ", ".join(f"{site} ({count})" for site, count in small.items())
        yield f"left out of the federation, too few training images: {listed}"


def estimate_runs(
    experiments: Sequence[Experiment], places: Sequence[WorkerPlace]
) -> list[RunEstimate]:
    """An estimate for each experiment, with a run at each place at once; these share their data."""
    estimates = []
    for answers in zip(
        *measure_at_every_place(places, _estimate_runs_here, experiments), strict=True
    ):
        cost = mean_cost([answer.cost for answer in answers])
        opening = fmean(answer.opening for answer in answers)
        estimates.append(replace(answers[0], cost=cost, opening=opening))
    return estimates


def _estimate_runs_here(device: str, experiments: Sequence[Experiment]) -> list[RunEstimate]:
    dataset = open_experiment_data(experiments[0])
    estimates = []
    for experiment in experiments:
        began = time.perf_counter()
        setup = prepare(on_device(replace(experiment, engine="serial"), device), dataset=dataset)
        with memory_shortage_told(setup.trainer):
            estimates.append(estimate_run(setup, opening=time.perf_counter() - began))
    return estimates

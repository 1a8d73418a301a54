"""What training costs on this machine: seconds and memory of a step, seconds of a run and of a
study.

Everything that is predicted is predicted here, in three steps. `TimedClient` times a client's work:
on the run's own data (`time_prepared_run`, for `feddraw compare`), or before any data are prepared
on made-up images (`time_experiment`, for `feddraw study --dry-run` and `feddraw doctor`); the
result is a `StepCost`. `RunWork` counts what a run has to do. Their product is the time of a run;
`seconds_until_all_done` makes that of a study.

As many processes as will train are timed at once, because cores share memory and caches.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from feddraw.core import Job, Memory, Method, Model
from feddraw.data.scenarios.paper_scenarios import paper_scenario
from feddraw.data.synthetic import is_synthetic
from feddraw.engines.serial import Serial
from feddraw.errors import RunFailed, UserError, first_line
from feddraw.experiment.device_placement import on_device
from feddraw.experiment.method_by_name import combined_method
from feddraw.experiment.run_preparation import (
    PreparedRun,
    PreparedTask,
    initial_model,
    open_experiment_data,
    prepare,
    trained_builder,
)
from feddraw.experiment.run_progress import images_to_evaluate
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.settings import FEATURE_SETTINGS, Experiment, make_method
from feddraw.system.machine import peak_memory
from feddraw.system.workers import Worker, WorkerDied, serve, stop_workers
from feddraw.training.client import Trainer
from feddraw.training.device_memory import allot_image_memory, memory_shortage_told
from feddraw.training.devices import WorkerPlace
from feddraw.training.loop import Examples, predict, steps_in_round
from feddraw.training.network import Build
from feddraw.training.network_by_name import build_network
from feddraw.training.network_cut import PartlyFrozen, takes_features
from feddraw.training.reproducibility import one_thread
from feddraw.training.settings import Training

Answer = TypeVar("Answer")

# On a run's own data.
TIMED_SECONDS = 1.0  # seconds of training that are timed, as far as steps are short enough
FEWEST_TIMED_STEPS = 3
MOST_TIMED_STEPS = 40
TIMED_IMAGES = 512  # images whose evaluation is timed, of a larger set

# On made-up images.
MOST_MADE_UP_STEPS = 20
LEAST_BATCH = 8  # images in the largest batch: two sizes or more tell how memory grows

# On the small network on which methods are compared.
SMALL_BATCH = 16
SMALL_STEPS = 8

# Validation images of a round and test images of a run, where the data's settings do not say.
EVALUATED_IMAGES = {"chestmnist": (11_219, 22_433), "chexpert": (202, 518)}


# ------------------------------------------------------------------------------- steps, runs, times


@dataclass(frozen=True)
class StepCost:
    """What one worker's work costs on a device, while others work there as they will."""

    step: float  # seconds of a training step of a whole batch
    batch: int  # images in the batches that were timed; 0: a step was estimated from another method
    client: float  # seconds of a client's work beside its steps
    evaluated_image: float  # seconds
    memory: int  # bytes of the process, or of a GPU, at its highest with a whole batch
    timed_memory: int  # the same with the batches that were timed


@dataclass(frozen=True)
class RunWork:
    """How much a run has to do."""

    steps: float  # of training; a batch that is not full counts by its share
    jobs: int  # clients that train, in all rounds together
    evaluated: int  # images

    def seconds(self, cost: StepCost) -> float:
        """Of one worker that does all of it."""
        return (
            cost.step * self.steps + cost.client * self.jobs + cost.evaluated_image * self.evaluated
        )

    @staticmethod
    def of_task(task: PreparedTask, rounds: int = 0) -> RunWork:
        """Counted from who trains on what in which round; of so many rounds, or (0) of all."""
        rounds = rounds or task.experiment.rounds
        training = task.training
        sizes = [len(rows) for rows in task.training_rows]
        steps = 0.0
        jobs = 0
        evaluated = 0
        for round in range(rounds):
            for client, effort in task.efforts(round).items():
                size = sizes[client]
                full = min(1.0, size / training.batch_size)
                steps += steps_in_round(size, training, effort) * full
                jobs += 1
            evaluated += images_to_evaluate(task, final=round == rounds - 1)
        return RunWork(steps, jobs, evaluated)

    @staticmethod
    def of_settings(experiment: Experiment) -> RunWork | None:
        """Counted from an experiment's settings alone, without what clients do beside their steps;
        None where only the data tell.
        """
        try:
            experiment = complete_settings(experiment)
        except UserError:  # its data are not here
            return None
        data, data_settings = experiment.section("data")
        scenario, scenario_settings = experiment.section("scenario")
        from_paper = paper_scenario(scenario, scenario_settings.pop("scale", 1.0))
        trained: int | None = None
        evaluated = EVALUATED_IMAGES.get(data)
        if is_synthetic(data) and {"validation", "test"} <= data_settings.keys():
            trained = data_settings.get("train")
            evaluated = (data_settings["validation"], data_settings["test"])
        if from_paper is not None and from_paper.total:
            trained = from_paper.total
        if trained is None or evaluated is None or experiment.training.work == "steps":
            return None
        training = experiment.training
        rounds = experiment.rounds
        validation, test = evaluated
        return RunWork(
            steps=trained * training.epochs * rounds / training.batch_size,
            jobs=0,
            evaluated=validation * rounds + test,
        )


@dataclass(frozen=True)
class RunEstimate:
    """What a run will take, from its own timed steps."""

    cost: StepCost
    opening: float  # seconds before its first step
    work: RunWork
    first_round: RunWork  # of the same run if it had one round
    rounds: int
    notes: tuple[str, ...] = ()  # what users should know of its clients before they train

    @property
    def seconds(self) -> float:
        """Of the whole run, with what comes before its first step."""
        return self.opening + self.work.seconds(self.cost)

    def seconds_with(self, rounds: int) -> float:
        """The same with fewer rounds."""
        whole = self.work.seconds(self.cost)
        single = self.first_round.seconds(self.cost)
        more_rounds = (rounds - 1) / max(1, self.rounds - 1)
        return self.opening + single + (whole - single) * more_rounds

    def seconds_at(self, size_ratio: float) -> float:
        """The same with images so many times as wide: steps take as long as they have pixels."""
        return self.opening + self.work.seconds(self.cost) * size_ratio**2


# ----------------------------------------------------------------------------------- a timed client


@dataclass
class TimedClient:
    """A client whose work is timed, in a round in which it remembers the one before."""

    trainer: Trainer
    method: Method
    model: Model
    client: int = 0
    clock: Callable[[], float] = time.perf_counter
    made_up: bool = False  # then it has no more images than its steps take
    memory_of_client: Memory = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.training = self.trainer.training
        self._rows = self.trainer.shards[self.client]

    @staticmethod
    def with_made_up_images(
        method: Method, build: Build, training: Training, size: int, findings: int, images: int
    ) -> TimedClient:
        """One client with random images of `size` pixels across, or random features where the
        network takes these.
        """
        rng = np.random.default_rng(0)
        order = np.arange(images)
        examples = Examples(
            images=_made_up_inputs(build, size, images, rng),
            targets=rng.integers(0, 2, (images, findings)).astype(np.float32),
            groups=(order % 2).astype(np.int8),
            patients=order,
        )
        trainer = Trainer(build, examples, [order], training, method.local, asks=method.asks)
        on_processor = torch.device(training.device).type == "cpu"
        return TimedClient(
            trainer,
            method,
            initial_model(partial(build, pretrained=False), 0),
            # what other programs do at the same time is not the processor's speed
            clock=time.process_time if on_processor else time.perf_counter,
            made_up=True,
        )

    def work(self, batch: int, steps: int) -> float:
        """Seconds of so many steps with batches of so many images, and of a client's work around
        them.
        """
        if self.made_up:
            self.trainer.shards = [self._rows[: steps * batch]]
        self.trainer.training = replace(self.training, batch_size=batch, steps=steps)
        began = self.clock()
        broadcast = self.method.broadcast(self.method.init(self.model))
        job = Job(
            round=1, rounds=15, client=self.client, seed=0, model=self.model, broadcast=broadcast
        )
        with memory_shortage_told(self.trainer):
            _, self.memory_of_client = self.trainer.work(job, self.memory_of_client)
        return self.clock() - began

    def steps_after(self, first: float, batch: int, steps: int) -> float:
        """Seconds of one of `steps` more steps, where `first` are those of work with one step."""
        return max((self.work(batch, 1 + steps) - first) / steps, 1e-6)

    def evaluate(self, images: int) -> float:
        """Seconds per image, without gradients."""
        network = self.trainer.network
        rows = np.arange(images, dtype=np.intp)
        with one_thread():
            predict(network, self.trainer.examples, rows[:2])
            began = self.clock()
            predict(network, self.trainer.examples, rows)
        return (self.clock() - began) / images

    def forget_peak(self) -> None:
        """Memory is counted from now on, where the system allows it."""
        device = self.trainer.network.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def memory(self) -> int:
        """Bytes at the highest so far: on a GPU there, else of this process."""
        device = self.trainer.network.device
        if device.type == "cuda":
            return int(torch.cuda.max_memory_reserved(device))
        return peak_memory()


# ------------------------------------------------------------------------------ on a run's own data


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
    step = client.steps_after(single, batch, min(MOST_TIMED_STEPS, max(FEWEST_TIMED_STEPS, wanted)))
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
    for answers in zip(*_at_every_place(places, _estimate_runs_here, experiments), strict=True):
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


# ------------------------------------------------------------------------------- on made-up images


def network_profile(experiment: Experiment) -> str:
    """Equal for experiments whose steps cost the same whatever the method: network, size and
    training.
    """
    training = asdict(experiment.training)
    for name in ("epochs", "work", "steps", "device", "lr"):
        del training[name]
    size = experiment.section("data")[1]["size"]
    inputs = ["features"] if experiment.trains_on_features else []
    return json.dumps([experiment.model, size, training, *inputs], sort_keys=True)


def method_profile(method: Method) -> str:
    """Equal for methods whose clients do the same."""
    return json.dumps([repr(method.local), method.asks])


def cost_profile(experiment: Experiment) -> str:
    """Equal for experiments that cost the same per step."""
    return json.dumps([network_profile(experiment), method_profile(make_method(experiment))])


def time_experiments(
    experiments: Sequence[Experiment],
    findings: int,
    places: Sequence[WorkerPlace],
    seconds: float,
) -> list[StepCost]:
    """What each experiment's steps cost with a worker at each place at once: the mean over these.

    Nothing of their data is needed but the number of findings. `seconds` are for all that is timed;
    the first step of a large network may take it beyond.
    """
    answers = _at_every_place(
        places, _time_experiments_here, list(map(without_data, experiments)), findings, seconds
    )
    return [mean_cost(costs) for costs in zip(*answers, strict=True)]


def without_data(experiment: Experiment) -> Experiment:
    """The experiment on phantoms of the same size, for which a worker needs no files."""
    settings = experiment.section("data")[1]
    kept = {key: settings[key] for key in ("size", *FEATURE_SETTINGS) if key in settings}
    return complete_settings(replace(experiment, data={"name": "phantom", **kept}, engine="serial"))


def _time_experiments_here(
    device: str, experiments: Sequence[Experiment], findings: int, seconds: float
) -> list[StepCost]:
    here = [experiment.with_settings({"training.device": device}) for experiment in experiments]
    return list(time_in_turn(here, findings, seconds))


def time_in_turn(
    experiments: Sequence[Experiment], findings: int, seconds: float
) -> Iterator[StepCost]:
    """The first experiment on each network is timed in any case, the others where whole batches
    leave the time; else what their methods add to a step is measured on a small network.
    """
    began = time.perf_counter()
    firsts: dict[str, tuple[Experiment, StepCost]] = {}  # by network
    networks = len({network_profile(experiment) for experiment in experiments})
    for experiment in experiments:
        network = network_profile(experiment)
        if network not in firsts:
            cost = time_experiment(experiment, findings, seconds / 2 / networks)
            firsts[network] = (experiment, cost)
            yield cost
            continue
        first, first_cost = firsts[network]
        whole_batch = first_cost.batch == first.training.batch_size
        if whole_batch and time.perf_counter() - began < seconds:
            yield time_experiment(experiment, findings, seconds / 2 / len(experiments))
        else:
            methods = [make_method(experiment), make_method(first)]
            factor, first_factor = step_time_factors(methods, experiment.training)
            step = first_cost.step * factor / first_factor
            yield replace(first_cost, step=step, batch=0)


def time_experiment(experiment: Experiment, findings: int, seconds: float) -> StepCost:
    """Time batches of two, four, eight … made-up images, as far as the seconds allow and the batch
    size goes; where it is not reached, a step is multiplied up.
    """
    training = experiment.training
    client = TimedClient.with_made_up_images(
        make_method(experiment),
        trained_builder(experiment, findings),
        training,
        size=experiment.section("data")[1]["size"],
        findings=findings,
        images=2 * training.batch_size,
    )
    client.work(2, 1)  # the first step allocates memory and chooses algorithms
    client.forget_peak()
    began = time.perf_counter()
    memory: dict[int, int] = {}  # bytes at the highest, by the size of the batch
    batch = 2
    while True:
        before = time.perf_counter()
        single = client.work(batch, 1)
        memory[batch] = client.memory()
        now = time.perf_counter()
        waited = now - before  # on a busy processor, longer than its own seconds
        left = seconds - (now - began)
        if batch == training.batch_size or (batch >= LEAST_BATCH and 6 * waited > left):
            break
        batch = min(2 * batch, training.batch_size)
    more = int(min(MOST_MADE_UP_STEPS, max(0, left / 2 / waited)))
    if more:
        single = min(single, client.work(batch, 1))  # the first with a batch size is slow
        step = client.steps_after(single, batch, more)
    else:
        step = single
    timed_memory = max(memory.values())
    untimed_images = training.batch_size - batch
    return StepCost(
        step=step * training.batch_size / batch,
        batch=batch,
        client=max(0.0, single - step),
        evaluated_image=client.evaluate(batch),
        memory=timed_memory + round(_memory_per_image(memory) * untimed_images),
        timed_memory=timed_memory,
    )


def _made_up_inputs(build: Build, size: int, images: int, rng: np.random.Generator) -> NDArray[Any]:
    """Random images, or random features of the shape that a network without its frozen part
    takes.
    """
    if takes_features(build):
        module, _ = build()
        assert isinstance(module, PartlyFrozen)
        return rng.standard_normal((images, *module.cut.shape), np.float32)
    return rng.integers(0, 256, (images, size, size), np.uint8)


def _memory_per_image(memory: Mapping[int, int]) -> float:
    """Bytes that each more image of a batch takes, from the two largest batches."""
    if len(memory) < 2:
        return 0.0
    smaller, larger = sorted(memory)[-2:]
    return max(0.0, (memory[larger] - memory[smaller]) / (larger - smaller))


def step_time_factors(methods: Sequence[Method], training: Training | None = None) -> list[float]:
    """How much longer a step takes under each method than plain training, on a small network on the
    processor.
    """
    training = replace(training or Training(), batch_size=SMALL_BATCH, device="cpu", amp="off")
    plain = combined_method("fedavg", {})
    kinds = {method_profile(method): method for method in (plain, *methods)}
    seconds = {kind: _small_step(method, training) for kind, method in kinds.items()}
    plain_seconds = seconds[method_profile(plain)]
    return [max(1.0, seconds[method_profile(method)] / plain_seconds) for method in methods]


def _small_step(method: Method, training: Training) -> float:
    """Seconds of a step of the small network."""
    client = TimedClient.with_made_up_images(
        method,
        partial(build_network, "compact", 5, {}),
        training,
        size=32,
        findings=5,
        images=SMALL_BATCH * (1 + SMALL_STEPS),
    )
    # allocates memory; some rules do more once there is a round to remember
    client.work(SMALL_BATCH, 1)
    many = min(client.work(SMALL_BATCH, 1 + SMALL_STEPS) for _ in range(3))
    single = min(client.work(SMALL_BATCH, 1) for _ in range(3))
    return max(many - single, 1e-6)


# --------------------------------------------------------------------------------- several at once


def mean_cost(costs: Sequence[StepCost]) -> StepCost:
    """Over workers that were timed at once: mean times, the smallest batch and the most memory."""
    return StepCost(
        step=fmean(cost.step for cost in costs),
        batch=min(cost.batch for cost in costs),
        client=fmean(cost.client for cost in costs),
        evaluated_image=fmean(cost.evaluated_image for cost in costs),
        memory=max(cost.memory for cost in costs),
        timed_memory=max(cost.timed_memory for cost in costs),
    )


def _at_every_place(
    places: Sequence[WorkerPlace], measure: Callable[..., Answer], *arguments: object
) -> list[Answer]:
    """What `measure(device, *arguments)` gives in a process at each place, all at once.

    A user's mistake and a lack of memory are raised as the user's mistake.
    """
    team = [Worker(serve, _measure_here) for _ in places]
    try:
        for worker, place in zip(team, places, strict=True):
            worker.send((place, measure, arguments))
        return [worker.receive() for worker in team]
    except UserError:
        raise
    except WorkerDied as death:
        what = f"a worker {death.how} while timing training steps{death.advice}"
        raise RunFailed(what) from None
    except RunFailed as failure:
        raise UserError(str(failure)) from None
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise RunFailed(f"a worker failed while timing training steps: {reason}") from error
    finally:
        stop_workers(team)


def _measure_here(request: tuple[WorkerPlace, Callable[..., Any], Sequence[Any]]) -> Any:
    """What a worker does."""
    place, measure, arguments = request
    allot_image_memory(place)
    warnings.simplefilter("ignore")
    return measure(place.device, *arguments)

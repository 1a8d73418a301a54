"""A few training steps on made-up images, before any data are prepared: what a step takes and how much memory it needs.

Where a whole batch would take too long, smaller ones are timed and multiplied up, for the first method on each network;
what the others add to its steps is then measured on a small network. As many processes as will train are timed at
once, each on its own device, because cores share memory and caches.
"""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from feddraw.core import Job, Memory, Method
from feddraw.errors import RunFailed, UserError
from feddraw.experiment.method_by_name import combined_method
from feddraw.experiment.run_preparation import builder, initial_model
from feddraw.experiment.run_time_estimate import Work, answers
from feddraw.experiment.settings import Experiment, complete, make_method
from feddraw.system.workers import belong_to_parent, peak_memory, start_worker
from feddraw.training.client import Trainer, shortage_told
from feddraw.training.loop import Examples, one_thread, predict
from feddraw.training.network import Build
from feddraw.training.network_by_name import build
from feddraw.training.settings import Training

SECONDS = 45.0  # for all that is timed; a first step of a large network may take it beyond
MOST_STEPS = 20
LEAST = 8  # images in the largest batch on each network: two sizes tell how memory grows
SMALL, STEPS = 16, 8  # images of a batch, and steps, of the small network on which methods are compared


@dataclass(frozen=True)
class Rehearsed:
    """What an experiment's work costs on a device."""

    step: float  # seconds of a training step of a whole batch
    batch: int  # images in the batches that were timed; 0 = reckoned from what the method adds on a small network
    client: float  # seconds of a client's work beside its steps
    evaluated_image: float  # seconds
    memory: int  # bytes of the process, or of a GPU, at its highest

    def seconds(self, work: Work) -> float:
        return work.seconds(self.step, self.client, self.evaluated_image)


def profile(experiment: Experiment) -> str:
    """Experiments with the same profile cost the same per step: network, size, training and what a client does."""
    return json.dumps([_network(experiment), _kind(make_method(experiment))])


def _network(experiment: Experiment) -> str:
    """What a step costs whatever the method: network, size and training."""
    training = {k: v for k, v in asdict(experiment.training).items() if k not in ("epochs", "steps", "device", "lr")}
    return json.dumps([experiment.model, experiment.section("data")[1]["size"], training], sort_keys=True)


def _kind(method: Method) -> str:
    """What a client does under it."""
    return json.dumps([repr(method.local), method.asks])


def rehearse(
    experiments: Sequence[Experiment], findings: int, devices: Sequence[str], seconds: float
) -> list[Rehearsed]:
    """What each experiment costs with a worker at once on each of the devices: the mean over these."""
    tables = [complete(experiment).table() for experiment in experiments]
    team = [start_worker(serve, json.dumps([tables, findings, device, seconds])) for device in devices]
    return [_over_devices(one) for one in zip(*answers(team), strict=True)]


def _over_devices(found: Sequence[Mapping[str, Any]]) -> Rehearsed:
    """Mean times, the smallest batch and the most memory."""
    step, client, image = (
        statistics.fmean(one[name] for one in found) for name in ("step", "client", "evaluated_image")
    )
    return Rehearsed(step, min(one["batch"] for one in found), client, image, max(one["memory"] for one in found))


def serve(pipe: Connection, request: str) -> None:
    """What a worker does: rehearse one experiment after the other."""
    belong_to_parent()
    warnings.simplefilter("ignore")
    tables, findings, device, seconds = json.loads(request)
    experiments = [Experiment.of(table).with_settings({"training.device": device}) for table in tables]
    try:
        said: dict[str, Any] = {"timed": [asdict(one) for one in _rehearsed(experiments, findings, seconds)]}
    except (UserError, RunFailed) as mistake:
        said = {"mistake": str(mistake)}
    pipe.send_bytes(json.dumps(said).encode())


def _rehearsed(experiments: Sequence[Experiment], findings: int, seconds: float) -> Iterator[Rehearsed]:
    """The first experiment on each network is timed in any case, the others where whole batches leave the time."""
    began, firsts = time.perf_counter(), dict[str, _Timed]()
    networks = len({_network(experiment) for experiment in experiments})
    for experiment in experiments:
        first = firsts.get(network := _network(experiment))
        if first is None:
            firsts[network] = timed = _Timed(experiment, findings, seconds / 2 / networks)
            yield timed.rehearsed
        elif first.is_whole and time.perf_counter() - began < seconds:
            yield _Timed(experiment, findings, seconds / 2 / len(experiments)).rehearsed
        else:
            here, there = step_factors([make_method(experiment), first.method], experiment.training)
            yield replace(first.rehearsed, step=first.rehearsed.step * here / there, batch=0)


def step_factors(methods: Sequence[Method], training: Training | None = None) -> list[float]:
    """How much longer a step takes under each method than plain training, on a small network on the processor."""
    how = replace(training or Training(), batch_size=SMALL, device="cpu", amp="off")

    def step(method: Method) -> float:
        stage = _Stage(method, partial(build, "compact", 5, {}), 32, 5, how, images=SMALL * (1 + STEPS))
        stage.work(SMALL, 1)  # allocates memory; some rules do more once there is a round to remember
        longer, shorter = (min(stage.work(SMALL, steps) for _ in range(3)) for steps in (1 + STEPS, 1))
        return max(longer - shorter, 1e-6)

    plain = combined_method("fedavg", {})
    kinds = {_kind(method): method for method in (plain, *methods)}
    taken = {kind: step(method) for kind, method in kinds.items()}
    return [max(1.0, taken[_kind(method)] / taken[_kind(plain)]) for method in methods]


class _Timed:
    """One experiment: batches of two, four, eight … images, as far as the time allows and the batch size goes."""

    def __init__(self, experiment: Experiment, findings: int, seconds: float) -> None:
        began, whole = time.perf_counter(), experiment.training.batch_size
        self.method = make_method(experiment)
        size, make = experiment.section("data")[1]["size"], builder(experiment, findings)
        how = (size, findings, experiment.training)
        stage = _Stage(self.method, make, *how, images=2 * whole, seed=experiment.seed)
        stage.work(2, 1)  # the first step allocates memory and chooses algorithms
        used: dict[int, int] = {}  # bytes at the highest, by the size of the batch
        batch = 2
        while True:
            before = time.perf_counter()
            one, used[batch] = stage.work(batch, 1), stage.memory()
            now = time.perf_counter()
            waited, left = now - before, seconds - (now - began)  # on a busy processor, longer than its own seconds
            if batch == whole or (batch >= LEAST and 6 * waited > left):
                break
            batch = min(2 * batch, whole)
        count = int(min(MOST_STEPS, max(0, left / 2 / waited)))
        step = max((stage.work(batch, 1 + count) - one) / count, 1e-6) if count else one
        memory = max(used.values()) + round(_growth(used) * (whole - batch))
        self.is_whole = batch == whole
        evaluated = stage.evaluate(batch)
        self.rehearsed = Rehearsed(step * whole / batch, batch, max(0.0, one - step), evaluated, memory)


def _growth(used: Mapping[int, int]) -> float:
    """Bytes by image, from the two largest batches."""
    sizes = sorted(used)[-2:]
    return max(0.0, (used[sizes[-1]] - used[sizes[0]]) / max(1, sizes[-1] - sizes[0]))


class _Stage:
    """A trainer with made-up images for one client, in a round in which it remembers the one before."""

    def __init__(
        self, method: Method, make: Build, size: int, findings: int, training: Training, *, images: int, seed: int = 0
    ) -> None:
        self.method, self.training, self.images = method, training, images
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 256, (images, size, size), np.uint8)
        targets = rng.integers(0, 2, (images, findings)).astype(np.float32)
        order = np.arange(images)
        examples = Examples(pixels, targets, groups=(order % 2).astype(np.int8), patients=order)
        self.trainer = Trainer(make, examples, [order], training, method.local, asks=method.asks)
        self.model = initial_model(partial(make, pretrained=False), seed)
        self.memory_of_client: Memory = {}

    def work(self, batch: int, steps: int) -> float:
        """Seconds of so many steps with batches of so many images, and of a client's work around them."""
        self.trainer.shards = [np.arange(min(self.images, steps * batch), dtype=np.intp)]
        self.trainer.training = replace(self.training, batch_size=batch, steps=steps)
        began = self.clock()
        job = Job(1, 15, 0, 0, self.model, self.method.broadcast(self.method.init(self.model)))
        with shortage_told(self.trainer):
            _, self.memory_of_client = self.trainer.work(job, self.memory_of_client)
        return self.clock() - began

    def evaluate(self, images: int) -> float:
        """Seconds per image, without gradients."""
        network, rows = self.trainer.network, np.arange(images, dtype=np.intp)
        with one_thread():
            predict(network, self.trainer.examples, rows[:2])
            began = self.clock()
            predict(network, self.trainer.examples, rows)
        return (self.clock() - began) / images

    def clock(self) -> float:
        """Seconds; on a processor only those that it worked for us, because other programs' time would count, too."""
        return time.process_time() if self.trainer.network.device.type == "cpu" else time.perf_counter()

    def memory(self) -> int:
        """Bytes at the highest so far: on a GPU there, else of this process."""
        device = self.trainer.network.device
        if device.type == "cuda":
            return int(torch.cuda.max_memory_reserved(device))
        return peak_memory()

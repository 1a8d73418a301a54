"""A rehearsal of training on made-up images, before any data are prepared: what a step costs in
time and memory.

Where a whole batch would take too long, smaller ones are timed and multiplied up, for the first
method on each network; what the others add to its steps is then measured on a small network.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from statistics import fmean
from typing import Any

import numpy as np
import torch

from feddraw.core import Job, Memory, Method
from feddraw.errors import RunFailed, UserError
from feddraw.experiment import run_preparation
from feddraw.experiment.method_by_name import combined_method
from feddraw.experiment.run_time_estimate import RunWork, estimate_by_workers
from feddraw.experiment.settings import Experiment, complete, make_method
from feddraw.system.machine import peak_memory
from feddraw.system.workers import belong_to_parent, start_worker
from feddraw.training.client import Trainer
from feddraw.training.device_memory import memory_shortage_told
from feddraw.training.loop import Examples, predict
from feddraw.training.network import Build
from feddraw.training.network_by_name import build_network
from feddraw.training.reproducibility import one_thread
from feddraw.training.settings import Training

REHEARSAL_SECONDS = (
    45.0  # for all that is timed; a first step of a large network may take it beyond
)
MOST_REHEARSED_STEPS = 20
LEAST_REHEARSED_BATCH = (
    8  # images in the largest batch on each network: two sizes tell how memory grows
)
SMALL_BATCH, SMALL_STEPS = (
    16,
    8,
)  # images of a batch, and steps, of the small network on which methods are compared


@dataclass(frozen=True)
class RehearsedTimes:
    """What an experiment's work costs on a device."""

    step: float  # seconds of a training step of a whole batch
    # images in the batches that were timed; 0 = estimated from what the method adds on a small
    # network
    batch: int
    client: float  # seconds of a client's work beside its steps
    evaluated_image: float  # seconds
    memory: int  # bytes of the process, or of a GPU, at its highest

    def seconds(self, work: RunWork) -> float:
        return work.seconds(self.step, self.client, self.evaluated_image)


def time_profile(experiment: Experiment) -> str:
    """Experiments with the same profile cost the same per step: network, size, training and what a
    client does.
    """
    return json.dumps([_network_profile(experiment), _method_profile(make_method(experiment))])


def _network_profile(experiment: Experiment) -> str:
    """What a step costs whatever the method: network, size and training."""
    training = {
        k: v
        for k, v in asdict(experiment.training).items()
        if k not in ("epochs", "steps", "device", "lr")
    }
    return json.dumps(
        [experiment.model, experiment.section("data")[1]["size"], training], sort_keys=True
    )


def _method_profile(method: Method) -> str:
    return json.dumps([repr(method.local), method.asks])


def rehearse_step_times(
    experiments: Sequence[Experiment], findings: int, devices: Sequence[str], seconds: float
) -> list[RehearsedTimes]:
    """What each experiment costs with a worker at once on each of the devices: the mean
    over these.
    """
    tables = [complete(experiment).table() for experiment in experiments]
    team = [
        start_worker(serve_rehearsal, json.dumps([tables, findings, device, seconds]))
        for device in devices
    ]
    return [_mean_over_devices(one) for one in zip(*estimate_by_workers(team), strict=True)]


def _mean_over_devices(found: Sequence[Mapping[str, Any]]) -> RehearsedTimes:
    """Mean times, the smallest batch and the most memory."""
    step, client, image = (
        fmean(one[name] for one in found) for name in ("step", "client", "evaluated_image")
    )
    return RehearsedTimes(
        step, min(one["batch"] for one in found), client, image, max(one["memory"] for one in found)
    )


def serve_rehearsal(pipe: Connection, request: str) -> None:
    """What a worker does: rehearse one experiment after the other."""
    belong_to_parent()
    warnings.simplefilter("ignore")
    tables, findings, device, seconds = json.loads(request)
    experiments = [
        Experiment.of(table).with_settings({"training.device": device}) for table in tables
    ]
    try:
        said: dict[str, Any] = {
            "timed": [asdict(one) for one in _rehearsed(experiments, findings, seconds)]
        }
    except (UserError, RunFailed) as mistake:
        said = {"mistake": str(mistake)}
    pipe.send_bytes(json.dumps(said).encode())


def _rehearsed(
    experiments: Sequence[Experiment], findings: int, seconds: float
) -> Iterator[RehearsedTimes]:
    """The first experiment on each network is timed in any case, the others where whole batches
    leave the time.
    """
    began, firsts = time.perf_counter(), dict[str, _TimedExperiment]()
    networks = len({_network_profile(experiment) for experiment in experiments})
    for experiment in experiments:
        first = firsts.get(network := _network_profile(experiment))
        if first is None:
            firsts[network] = timed = _TimedExperiment(experiment, findings, seconds / 2 / networks)
            yield timed.rehearsed
        elif first.is_whole and time.perf_counter() - began < seconds:
            yield _TimedExperiment(experiment, findings, seconds / 2 / len(experiments)).rehearsed
        else:
            here, there = step_time_factors(
                [make_method(experiment), first.method], experiment.training
            )
            yield replace(first.rehearsed, step=first.rehearsed.step * here / there, batch=0)


def step_time_factors(methods: Sequence[Method], training: Training | None = None) -> list[float]:
    """How much longer a step takes under each method than plain training, on a small network on the
    processor.
    """
    how = replace(training or Training(), batch_size=SMALL_BATCH, device="cpu", amp="off")

    def step(method: Method) -> float:
        make = partial(build_network, "compact", 5, {})
        client = _RehearsedClient(method, make, 32, 5, how, images=SMALL_BATCH * (1 + SMALL_STEPS))
        client.work(
            SMALL_BATCH, 1
        )  # allocates memory; some rules do more once there is a round to remember
        longer, shorter = (
            min(client.work(SMALL_BATCH, steps) for _ in range(3)) for steps in (1 + SMALL_STEPS, 1)
        )
        return max(longer - shorter, 1e-6)

    plain = combined_method("fedavg", {})
    kinds = {_method_profile(method): method for method in (plain, *methods)}
    taken = {kind: step(method) for kind, method in kinds.items()}
    return [
        max(1.0, taken[_method_profile(method)] / taken[_method_profile(plain)])
        for method in methods
    ]


class _TimedExperiment:
    """One experiment: batches of two, four, eight … images, as far as the time allows and the batch
    size goes.
    """

    def __init__(self, experiment: Experiment, findings: int, seconds: float) -> None:
        began, whole = time.perf_counter(), experiment.training.batch_size
        self.method = make_method(experiment)
        size, make = (
            experiment.section("data")[1]["size"],
            run_preparation.network_builder(experiment, findings),
        )
        how = (size, findings, experiment.training)
        client = _RehearsedClient(self.method, make, *how, images=2 * whole, seed=experiment.seed)
        client.work(2, 1)  # the first step allocates memory and chooses algorithms
        used: dict[int, int] = {}  # bytes at the highest, by the size of the batch
        batch = 2
        while True:
            before = time.perf_counter()
            one, used[batch] = client.work(batch, 1), client.memory()
            now = time.perf_counter()
            waited, left = (
                now - before,
                seconds - (now - began),
            )  # on a busy processor, longer than its own seconds
            if batch == whole or (batch >= LEAST_REHEARSED_BATCH and 6 * waited > left):
                break
            batch = min(2 * batch, whole)
        count = int(min(MOST_REHEARSED_STEPS, max(0, left / 2 / waited)))
        step = max((client.work(batch, 1 + count) - one) / count, 1e-6) if count else one
        memory = max(used.values()) + round(_estimated_memory_per_image(used) * (whole - batch))
        self.is_whole = batch == whole
        evaluated = client.evaluate(batch)
        self.rehearsed = RehearsedTimes(
            step * whole / batch, batch, max(0.0, one - step), evaluated, memory
        )


def _estimated_memory_per_image(used: Mapping[int, int]) -> float:
    """Bytes by image, from the two largest batches."""
    sizes = sorted(used)[-2:]
    return max(0.0, (used[sizes[-1]] - used[sizes[0]]) / max(1, sizes[-1] - sizes[0]))


class _RehearsedClient:
    """A trainer with made-up images for one client, in a round in which it remembers the one
    before.
    """

    def __init__(
        self,
        method: Method,
        make: Build,
        size: int,
        findings: int,
        training: Training,
        *,
        images: int,
        seed: int = 0,
    ) -> None:
        self.method, self.training, self.images = method, training, images
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 256, (images, size, size), np.uint8)
        targets = rng.integers(0, 2, (images, findings)).astype(np.float32)
        order = np.arange(images)
        examples = Examples(pixels, targets, groups=(order % 2).astype(np.int8), patients=order)
        self.trainer = Trainer(make, examples, [order], training, method.local, asks=method.asks)
        self.model = run_preparation.initial_model(partial(make, pretrained=False), seed)
        self.memory_of_client: Memory = {}

    def work(self, batch: int, steps: int) -> float:
        """Seconds of so many steps with batches of so many images, and of a client's work around
        them.
        """
        self.trainer.shards = [np.arange(min(self.images, steps * batch), dtype=np.intp)]
        self.trainer.training = replace(self.training, batch_size=batch, steps=steps)
        began = self.clock()
        job = Job(1, 15, 0, 0, self.model, self.method.broadcast(self.method.init(self.model)))
        with memory_shortage_told(self.trainer):
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
        """Seconds; on a processor only those that it worked for us, because other programs' time
        would count, too.
        """
        return (
            time.process_time()
            if self.trainer.network.device.type == "cpu"
            else time.perf_counter()
        )

    def memory(self) -> int:
        """Bytes at the highest so far: on a GPU there, else of this process."""
        device = self.trainer.network.device
        return (
            int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else peak_memory()
        )

"""Workloads of random images, and the training loops of scripts that ours stands beside.

These are the only gradients outside `training`, and no client's data comes here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import nn

from feddraw.bench import peer_task
from feddraw.bench.ratios import timed
from feddraw.bench.server_step import names_of
from feddraw.catalog import installed
from feddraw.core import Local, Method, Model
from feddraw.engines import Engine
from feddraw.experiment.run_preparation import initial_model
from feddraw.experiment.settings import PRESETS
from feddraw.federation import federate
from feddraw.system.workers import belong_to_parent, start_worker, stop_workers
from feddraw.training.client import Trainer
from feddraw.training.loop import Examples, Rows, epoch_batches, one_thread
from feddraw.training.network_by_name import build_network
from feddraw.training.settings import Training

CORES = 2  # that bare processes and workers share


@dataclass(frozen=True)
class Workload:
    """Equal clients on one of our networks."""

    title: str
    model: str
    pixels: int
    clients: int
    steps: int
    batch: int
    settings: tuple[tuple[str, str], ...] = ()

    def trainer(self, local: Local) -> Trainer:
        total = self.clients * self.steps * self.batch
        examples = Examples(*peer_task.pictures(total, self.pixels, labels=5))
        make = partial(build_network, self.model, 5, dict(self.settings))
        how = Training(epochs=1, batch_size=self.batch)
        return Trainer(make, examples, np.split(np.arange(total), self.clients), how, local)


WORKLOADS = {
    "small": Workload("compact, 32 px, 10 clients × 3 steps of 64", "compact", 32, 10, 3, 64),
    "medium": Workload("compact, 64 px, 10 clients × 2 steps of 64", "compact", 64, 10, 2, 64),
    "densenet121": Workload(
        "DenseNet121, 64 px, 4 clients × 1 step of 32", "densenet121", 64, 4, 1, 32, (("weights", "none"),)
    ),
}


# How the paper trains, whatever the network.
PAPER_TRAINING = {
    name.removeprefix("training."): value for name, value in PRESETS["paper"].items() if name.startswith("training.")
}


def workloads(quick: bool) -> dict[str, Workload]:
    """Those that can be had here: DenseNet121 only with MONAI, and not in a hurry."""
    chosen = ["small"] if quick else ["small", "medium"]
    if not quick and installed("monai"):
        chosen.append("densenet121")
    return {name: WORKLOADS[name] for name in chosen}


def bare_loop(trainer: Trainer, model: Model) -> float:
    """Seconds of the same steps as a careful script would write them: channels last, fused Adam, gathered batches."""
    module = trainer.build()[0].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    state = {name: torch.from_numpy(array) for name, array in model.arrays().items()}
    with one_thread():
        start = time.perf_counter()
        for shard in trainer.shards:
            module.load_state_dict(state)
            optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, fused=True)
            module.train()
            for rows in epoch_batches(shard, trainer.training.batch_size, np.random.default_rng(0)):
                images, targets = trainer.examples.batch(rows)
                optimizer.zero_grad()
                loss = nn.functional.binary_cross_entropy_with_logits(module(images), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return time.perf_counter() - start


class BareProcesses:
    """Two processes of a script, each with its half of the clients: what two cores can do without a federation."""

    def __init__(self, workload: Workload) -> None:
        self._started = [start_worker(_serve_bare, workload, half) for half in range(CORES)]

    def __call__(self) -> float:
        """Seconds until both are done."""
        start = time.perf_counter()
        for pipe, _ in self._started:
            pipe.send(True)
        for pipe, _ in self._started:
            pipe.recv()
        return time.perf_counter() - start

    def close(self) -> None:
        stop_workers(self._started)


def _serve_bare(pipe: Connection, workload: Workload, half: int) -> None:
    belong_to_parent()
    torch.set_num_threads(1)
    trainer = workload.trainer(Local())
    trainer.shards = trainer.shards[half::CORES]
    model = initial_model(trainer.build, 0)
    try:
        while pipe.recv():
            pipe.send(bare_loop(trainer, model))
    except (EOFError, OSError):
        pass  # the bench has closed the pipe


def plain_step(trainer: Trainer, rows: Rows) -> Callable[[], None]:
    """A training step as peers' examples write it: plain layout, an optimiser that goes through the layers one by one,
    gradients clipped likewise."""
    module = trainer.build()[0]
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, foreach=False, fused=False)

    def step() -> None:
        images, targets = trainer.examples.batch(rows)
        module.train()
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(module(images.contiguous()), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(module.parameters(), 5.0, foreach=False)
        optimizer.step()

    return step


def one_round(engine: Engine, model: Model, method: Method, clients: int) -> float:
    """Seconds of a federated round."""
    return timed(lambda: next(federate(model, method, engine, names_of(clients), rounds=15, seed=0)))

"""Workloads of random images for our networks: equal clients, and how the paper trains."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.speed import peer_task
from feddraw.core import Local
from feddraw.experiment.settings import PRESETS
from feddraw.system.machine import installed
from feddraw.training.client import Trainer
from feddraw.training.loop import Examples
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
        """A trainer of random images, an equal share for each client."""
        total = self.clients * self.steps * self.batch
        images, targets = peer_task.random_pictures(total, self.pixels, labels=5)
        return Trainer(
            partial(build_network, self.model, 5, dict(self.settings)),
            Examples(images, targets),
            np.split(np.arange(total), self.clients),
            Training(epochs=1, batch_size=self.batch),
            local,
        )


WORKLOADS = {
    "small": Workload(
        "compact, 32 px, 10 clients × 3 steps of 64",
        model="compact",
        pixels=32,
        clients=10,
        steps=3,
        batch=64,
    ),
    "medium": Workload(
        "compact, 64 px, 10 clients × 2 steps of 64",
        model="compact",
        pixels=64,
        clients=10,
        steps=2,
        batch=64,
    ),
    "densenet121": Workload(
        "DenseNet121, 64 px, 4 clients × 1 step of 32",
        model="densenet121",
        pixels=64,
        clients=4,
        steps=1,
        batch=32,
        settings=(("weights", "none"),),
    ),
}
# How the paper trains, whatever the network.
PAPER_TRAINING = {
    name.removeprefix("training."): value
    for name, value in PRESETS["paper"].items()
    if name.startswith("training.")
}


def workloads(quick: bool) -> dict[str, Workload]:
    """Those that can be had here: DenseNet121 only with MONAI, and not in a hurry."""
    chosen = ["small"] if quick else ["small", "medium"]
    if not quick and installed("monai"):
        chosen.append("densenet121")
    return {name: WORKLOADS[name] for name in chosen}

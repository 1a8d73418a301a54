"""What every peer does in a round: the same data, the same network, the same number of SGD steps,
one thread a process.

Peers' scripts (`benchmarks/peers`) find a copy of this file beside them, as their environment need
not have feddraw. They talk to the bench through a socket: it says when to
begin a round, they say how many seconds it took.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

PIXELS = 28
LABELS = 14
BATCH = 20
LR = 0.01
SOCKET = "FEDDRAW_BENCH_SOCKET"
TASK = "FEDDRAW_BENCH_TASK"


@dataclass(frozen=True)
class PeerTask:
    # width of the layer before the classifier: 32 makes 55,470 parameters, 4,400 make 6.97 million
    hidden: int
    clients: int
    steps: int

    @property
    def images(self) -> int:
        """Of each client."""
        return self.steps * BATCH


TASKS = {
    "tiny 10 × 10": PeerTask(32, clients=10, steps=10),
    "tiny 100 × 1": PeerTask(32, clients=100, steps=1),
    "wide 10 × 1": PeerTask(4400, clients=10, steps=1),
}


class Net(nn.Module):
    """Two convolutions and a hidden layer."""

    classifier_name = "classifier"

    def __init__(self, hidden: int = 32, pixels: int = PIXELS) -> None:
        super().__init__()
        self.hidden, self.pixels = hidden, pixels
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(7) if pixels != PIXELS else nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 49, hidden),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(hidden, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.body(x))
        return logits


def random_pictures(
    images: int, side: int = PIXELS, labels: int = LABELS
) -> tuple[np.ndarray, np.ndarray]:
    """Random ones, as they would lie on a disk."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (images, side, side), dtype=np.uint8)
    return pixels, rng.integers(0, 2, (images, labels)).astype(np.float32)


def build_net(hidden: int, pixels: int = PIXELS) -> tuple[nn.Module, str]:
    """The network and the name of its classifier, as feddraw takes them."""
    return Net(hidden, pixels), Net.classifier_name


def tensors(task: PeerTask) -> list[tuple[Tensor, Tensor]]:
    """Each client's images and targets, normalised once: peers need not do that in a round."""
    pixels, targets = random_pictures(task.clients * task.images)
    x = torch.from_numpy(pixels).unsqueeze(1).float().div_(255).sub_(0.5).div_(0.25)
    y = torch.from_numpy(targets)
    starts = range(0, len(x), task.images)
    return [(x[start : start + task.images], y[start : start + task.images]) for start in starts]


def train(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """One epoch, as a client's script is usually written."""
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    net.train()
    for start in range(0, len(x), BATCH):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(
            net(x[start : start + BATCH]), y[start : start + BATCH]
        )
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.item()


def task() -> PeerTask:
    """What the bench wants of this process."""
    torch.set_num_threads(1)
    return PeerTask(**json.loads(os.environ[TASK]))


class Bench:
    """The other end of the socket."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.environ[SOCKET])
        self._lines = self._socket.makefile("rw", encoding="utf-8")
        self._began = 0.0

    def wait(self) -> bool:
        """Until a round is wanted; false when there is to be none."""
        wanted = self._lines.readline().strip() == "round"
        self._began = time.perf_counter()
        return wanted

    def done(self) -> None:
        """The round is over."""
        print(time.perf_counter() - self._began, file=self._lines, flush=True)

    def rounds(self) -> Iterator[None]:
        """For systems that let a script drive them."""
        while self.wait():
            yield
            self.done()

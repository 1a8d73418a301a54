"""A client whose work is timed: its steps, what is around them, its evaluation, and its memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feddraw.core import Job, Memory, Method, Model
from feddraw.experiment.run_preparation import initial_model
from feddraw.system.machine import peak_memory
from feddraw.training.client import Trainer
from feddraw.training.device_memory import memory_shortage_told
from feddraw.training.loop import Examples, predict
from feddraw.training.network import Build
from feddraw.training.partly_frozen import TrainedPart
from feddraw.training.partly_frozen_by_trial import takes_features
from feddraw.training.reproducibility import one_thread
from feddraw.training.settings import Training


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
        method: Method,
        build: Build,
        training: Training,
        size: int,
        findings: int,
        images: int,
        channels: int = 1,
    ) -> TimedClient:
        """One client with random images of `size` pixels across, or random features where the
        network takes these.
        """
        rng = np.random.default_rng(0)
        order = np.arange(images)
        examples = Examples(
            images=_made_up_inputs(build, (size, size, channels), images, rng),
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


def _made_up_inputs(
    build: Build, image: tuple[int, int, int], images: int, rng: np.random.Generator
) -> NDArray[Any]:
    """Random images, or random features of the shape that a network without its frozen part
    takes.
    """
    if takes_features(build):
        module, _ = build()
        assert isinstance(module, TrainedPart)
        return rng.standard_normal((images, *module.cut.shape), np.float32)
    shape = image if image[2] == 3 else image[:2]
    return rng.integers(0, 256, (images, *shape), np.uint8)

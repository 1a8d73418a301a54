"""What a process does on a device that is examined: compute what is known, train twice, time steps.

A device is only ever touched by such a process: one that crashes takes nobody with it.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddraw.bench.workloads import PAPER_TRAINING, Workload
from feddraw.core import Local, Vector
from feddraw.errors import RunFailed
from feddraw.experiment.method_by_name import combined_method
from feddraw.experiment.rehearsal import step_time_factors
from feddraw.experiment.run_preparation import initial_model
from feddraw.experiment.settings import Experiment
from feddraw.system.machine import installed, peak_memory
from feddraw.system.workers import belong_to_parent, cause_of_death, start_worker, stop_workers
from feddraw.training.client import Trainer
from feddraw.training.device_memory import allot_image_memory, memory_shortage_told, step_memory
from feddraw.training.devices import WorkerPlace
from feddraw.training.loop import LocalTraining, fit, predict
from feddraw.training.optimizers import make_optimizer
from feddraw.training.reproducibility import compute_exactly, seeded_torch
from feddraw.training.settings import Training

LARGEST_BATCH = 64  # images of a batch, as in the paper
LONGEST_STEP = 1.0  # seconds that a step should take at most; batches are made smaller for that
TIMED_SECONDS = 1.2  # seconds of training that are timed


@dataclass(frozen=True)
class TrialTask:
    """A network, and the side of its images."""

    model: str
    pixels: int
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def title(self) -> str:
        return f"{self.model}, {self.pixels} px"

    def trainer(self, device: str, batch: int = LARGEST_BATCH) -> Trainer:
        """As the paper trains, on random images."""
        trainer = Workload(self.title, self.model, self.pixels, 1, 2, batch, self.settings).trainer(
            Local()
        )
        trainer.training = replace(trainer.training, **PAPER_TRAINING, device=device)
        return trainer


def serve_trial(pipe: Connection, place: WorkerPlace) -> None:
    """Answer what is asked, one question after the other, until the pipe closes."""
    belong_to_parent()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    allot_image_memory(place)
    examined = DeviceTrial(place.device)
    while True:
        try:
            number, question, arguments = pipe.recv()
            try:
                answer = getattr(examined, question)(*arguments)
            except Exception as error:
                answer = {
                    "error": f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
                }
            pipe.send((number, answer))
        except (EOFError, OSError):
            return


class DeviceTrial:
    """A device, and what can be asked of it."""

    def __init__(self, device: str) -> None:
        self.name, self.device = device, torch.device(device)
        self._trainers: dict[TrialTask, Trainer] = {}

    def sums(self) -> dict[str, Any]:
        """Largest error of a product, a convolution and a mean, relative to what double precision
        gives.
        """
        Training(device=self.name).available_device()
        rng = np.random.default_rng(0)
        a, b = (torch.from_numpy(rng.standard_normal((256, 256))) for _ in range(2))
        x, w = (
            torch.from_numpy(rng.standard_normal(shape)) for shape in ((4, 8, 20, 20), (8, 8, 3, 3))
        )
        exact = _known_sums(a, b, x, w)
        compute_exactly(self.device, tf32=False)
        here = _known_sums(*(tensor.float().to(self.device) for tensor in (a, b, x, w)))
        return {
            name: float((here[name].cpu().double() - exact[name]).norm() / exact[name].norm())
            for name in exact
        }

    def training(self, task: TrialTask, batch: int, steps: int) -> dict[str, Any]:
        """How some steps of plain SGD move a network, twice from the same start; what torch cannot
        repeat exactly.
        """
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            moves = [self._moved(task, batch, steps) for _ in range(2)]
        inexact = sorted(
            {str(one.message).split()[0] for one in told if "deterministic" in str(one.message)}
        )
        digests = [hashlib.sha256(move.tobytes()).hexdigest()[:16] for move in moves]
        return {"move": moves[0], "digests": digests, "inexact": inexact}

    def _moved(self, task: TrialTask, batch: int, steps: int) -> Vector:
        trainer = task.trainer(self.name, batch)
        trainer.training = replace(
            trainer.training, optimizer="sgd", lr=0.05, momentum=0.9, steps=steps
        )
        start = initial_model(trainer.build, 0)
        network, training = trainer.network, trainer.training
        network.load(start)
        with seeded_torch(1, network.device):
            fit(
                network,
                make_optimizer(network, training),
                trainer.examples,
                trainer.shards[0],
                trainer.local_training(seed=1),
            )
        return np.asarray(network.read().params - start.params)

    def _trainer(self, task: TrialTask) -> Trainer:
        if task not in self._trainers:
            self._trainers.clear()  # one after the other, so that each has the device to itself
            self._trainers[task] = task.trainer(self.name)
        return self._trainers[task]

    def ready(self, task: TrialTask) -> dict[str, Any]:
        """Build the network and find the size of a batch that does not take too long."""
        trainer = self._trainer(task)
        with memory_shortage_told(trainer):
            self._steps(trainer, 2, 1)
            one = self._steps(trainer, 4, 1)
        batch = 4
        while batch < LARGEST_BATCH and one * batch / 4 < LONGEST_STEP / 2:
            batch *= 2
        return {"batch": batch, "seconds": one * batch / 4}

    def speed(self, task: TrialTask, batch: int, seconds: float) -> dict[str, Any]:
        """Images a second in training and in testing, and what of the memory was taken."""
        trainer = self._trainer(task)
        self._forget_peak()
        with memory_shortage_told(trainer):
            first = self._steps(trainer, batch, 1)
            steps = max(1, int(min(TIMED_SECONDS, seconds) / max(first, 1e-6)) - 1)
            trained = self._steps(trainer, batch, steps) if seconds > first or steps > 1 else first
            began = self._clock()
            predict(trainer.network, trainer.examples, np.arange(batch))
            tested = self._clock() - began
        return {"train": steps * batch / trained, "test": batch / tested, "memory": self._taken()}

    def _steps(self, trainer: Trainer, batch: int, steps: int) -> float:
        """Seconds of so many steps."""
        training = replace(trainer.training, batch_size=batch, steps=steps)
        optimizer = make_optimizer(trainer.network, training)
        how = LocalTraining(training, trainer.smoothed_loss, seed=0)
        began = self._clock()
        # the mean loss waits for the device
        fit(trainer.network, optimizer, trainer.examples, trainer.shards[0], how)
        return self._clock() - began

    def _clock(self) -> float:
        """Of this process alone where the processor computes: what others do at the same time is
        not its speed.
        """
        return time.process_time() if self.device.type == "cpu" else time.perf_counter()

    def _forget_peak(self) -> None:
        """What is taken is counted from now on, where the system allows it."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def _taken(self) -> int:
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_reserved(self.device))
        return peak_memory()

    def factors(self, methods: Sequence[tuple[str, Iterable[tuple[str, Any]]]]) -> dict[str, Any]:
        """How much longer a step takes under each method than plain training, on a small
        network.
        """
        return {
            "factors": step_time_factors(
                [combined_method(name, dict(settings)) for name, settings in methods]
            )
        }

    def memory(self, task: TrialTask) -> dict[str, Any]:
        """Bytes that a worker takes with batches of 64, reckoned."""
        trainer = self._trainer(task)
        return {"reckoned": step_memory(trainer.build, task.pixels, trainer.training)}


def _known_sums(
    a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, w: torch.Tensor
) -> dict[str, torch.Tensor]:
    return {
        "product": a @ b,
        "convolution": torch.nn.functional.conv2d(x, w),
        "mean": x.mean(dim=(0, 2, 3)),
    }


def trial_difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """How far two trainings are apart, in lengths of the way that one of them went."""
    difference = float(
        np.linalg.norm(found["move"].astype(np.float64) - expected["move"].astype(np.float64))
    )
    return difference / float(np.linalg.norm(expected["move"].astype(np.float64)))


class TrialTooSlow(RunFailed):
    """No answer in the time that there was."""


class TrialProcesses:
    """Processes, one at each place."""

    def __init__(self, places: Sequence[WorkerPlace], target: Any = serve_trial) -> None:
        self.places, self._asked = places, 0
        self._members = [start_worker(target, place) for place in places]

    def __enter__(self) -> TrialProcesses:
        return self

    def __exit__(self, *exception: object) -> None:
        stop_workers(self._members)

    def ask(self, question: str, *arguments: Any, patience: float = 60.0) -> list[dict[str, Any]]:
        """All answers, one a process; a process that dies or fails is an error, and so is one that
        takes too long.
        """
        self._asked += 1
        for place, (pipe, process) in zip(self.places, self._members, strict=True):
            try:
                pipe.send((self._asked, question, arguments))
            except OSError:
                raise RunFailed(f"{place.device}: a process {cause_of_death(process)[0]}") from None
        return [self._answer_of(member, patience) for member in range(len(self._members))]

    def _answer_of(self, member: int, patience: float) -> dict[str, Any]:
        device, (pipe, process) = self.places[member].device, self._members[member]
        number, until = 0, time.monotonic() + patience
        answer: dict[str, Any] = {}
        try:
            while number != self._asked:  # what was asked before may be answered late
                if not pipe.poll(max(0.0, until - time.monotonic())):
                    raise TrialTooSlow(f"{device}: no answer within {patience:.0f} s")
                number, answer = pipe.recv()
        except (EOFError, ConnectionResetError):
            raise RunFailed(f"{device}: a process {''.join(cause_of_death(process))}") from None
        if "error" in answer:
            raise RunFailed(f"{device}: {answer['error']}")
        return answer


def network_installed(task: TrialTask) -> bool:
    """Whether what its network needs is installed."""
    return task.model != "densenet121" or installed("monai")


@dataclass(frozen=True)
class MeasuredSpeed:
    """Images a second of all workers on a device together, each in its own process."""

    device: str
    task: TrialTask
    workers: int
    batch: int
    train: float
    test: float
    memory: int  # bytes that one of them took, at this batch
    reckoned: int | None  # bytes that one takes with batches of 64

    def table(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "model": self.task.model,
            "pixels": self.task.pixels,
            "workers": self.workers,
            "batch": self.batch,
            "train_images_per_second": round(self.train, 2),
            "test_images_per_second": round(self.test, 2),
            "memory_bytes": self.memory,
            "memory_bytes_batch_64": self.reckoned,
        }


def trial_task_of(experiment: Experiment) -> TrialTask:
    """The network and image size of an experiment; its weights cost no time."""
    name, settings = experiment.section("model")
    if name == "densenet121":
        settings["weights"] = "none"
    return TrialTask(
        name, int(experiment.section("data")[1].get("size", 32)), tuple(sorted(settings.items()))
    )

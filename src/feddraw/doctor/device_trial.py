"""What a process does on a device that is examined: compute what is known, train twice, time steps.

A device is only ever touched by such a process: one that crashes takes nobody with it.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from feddraw.core import Vector
from feddraw.errors import RunFailed
from feddraw.experiment.method_by_name import combined_method
from feddraw.experiment.run_preparation import network_builder
from feddraw.experiment.settings import Experiment, make_method
from feddraw.study.cost import StepCost
from feddraw.study.timed_client import TimedClient
from feddraw.study.timing_on_made_up_images import step_time_factors, time_experiment, without_data
from feddraw.system.machine import installed
from feddraw.system.workers import Worker, WorkerDied, stop_workers
from feddraw.training.device_memory import allot_image_memory
from feddraw.training.devices import WorkerPlace
from feddraw.training.reproducibility import compute_exactly
from feddraw.training.settings import Training

TRIAL_BATCH = Experiment.preset("paper").training.batch_size
FINDINGS = 5  # as in the paper

MethodSettings = tuple[str, tuple[tuple[str, Any], ...]]  # a method's name and settings


@dataclass(frozen=True)
class TrialTask:
    """A network, and the side of its images in pixels."""

    model: str
    pixels: int
    settings: tuple[tuple[str, Any], ...] = ()  # of the network

    @staticmethod
    def of(experiment: Experiment) -> TrialTask:
        """The network and image size of an experiment; its weights cost no time."""
        model, settings = experiment.section("model")
        if model == "densenet121":
            settings["weights"] = "none"
        pixels = int(experiment.section("data")[1].get("size", 32))
        return TrialTask(model, pixels, tuple(sorted(settings.items())))

    @property
    def title(self) -> str:
        """In words."""
        return f"{self.model}, {self.pixels} px"

    @property
    def is_installed(self) -> bool:
        """Whether what the network needs is here."""
        return self.model != "densenet121" or installed("monai")

    def experiment(self, device: str = "cpu") -> Experiment:
        """Trained by FedAvg, as the paper trains, on images without files."""
        paper = Experiment.preset("paper")
        return without_data(
            replace(
                paper,
                model={"name": self.model, **dict(self.settings)},
                method={"name": "fedavg"},
                data={"name": "phantom", "size": self.pixels},
                training=replace(paper.training, device=device),
            )
        )


@dataclass(frozen=True)
class TrialTraining:
    """What some training steps did to a network."""

    move: Vector
    digests: tuple[str, str]  # of the moves of two trainings from the same start
    inexact: tuple[str, ...]  # operations that torch cannot repeat exactly

    def distance(self, expected: TrialTraining) -> float:
        """How far two trainings are apart, in lengths of the way that the expected one went."""
        move = self.move.astype(np.float64)
        expected_move = expected.move.astype(np.float64)
        return float(np.linalg.norm(move - expected_move) / np.linalg.norm(expected_move))


class DeviceTrial:
    """A device, and what can be asked of it: each public method is a question."""

    def __init__(self, device: str) -> None:
        self.device = device

    def sums(self) -> dict[str, float]:
        """Largest error of a product, a convolution and a mean, relative to what double precision
        gives.
        """
        device = Training(device=self.device).available_device()
        rng = np.random.default_rng(0)
        shapes = ((256, 256), (256, 256), (4, 8, 20, 20), (8, 8, 3, 3))
        tensors = [torch.from_numpy(rng.standard_normal(shape)) for shape in shapes]
        exact = _known_sums(*tensors)
        compute_exactly(device, tf32=False)
        here = _known_sums(*(tensor.float().to(device) for tensor in tensors))
        errors = {}
        for name, expected in exact.items():
            difference = here[name].cpu().double() - expected
            errors[name] = float(difference.norm() / expected.norm())
        return errors

    def training(self, task: TrialTask, batch: int, steps: int) -> TrialTraining:
        """How some steps of plain SGD move a network, twice from the same start; and what torch
        cannot repeat exactly.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            first = self._move(task, batch, steps)
            second = self._move(task, batch, steps)
        messages = [str(warning.message) for warning in caught]
        inexact = {text.split()[0] for text in messages if "deterministic" in text}
        return TrialTraining(first, (_digest(first), _digest(second)), tuple(sorted(inexact)))

    def _move(self, task: TrialTask, batch: int, steps: int) -> Vector:
        experiment = task.experiment(self.device)
        client = TimedClient.with_made_up_images(
            make_method(experiment),
            network_builder(experiment, FINDINGS),
            replace(experiment.training, optimizer="sgd", lr=0.05, momentum=0.9),
            size=task.pixels,
            findings=FINDINGS,
            images=2 * batch,
        )
        client.work(batch, steps)
        return np.asarray(client.trainer.network.read().params - client.model.params)

    def cost(self, task: TrialTask, seconds: float) -> StepCost:
        """What a training step and an evaluated image cost one worker, from so many seconds of
        training.
        """
        return time_experiment(task.experiment(self.device), FINDINGS, seconds)

    def factors(self, methods: Sequence[MethodSettings]) -> list[float]:
        """How much longer a step takes under each method than plain training, on a small
        network.
        """
        return step_time_factors(
            [combined_method(name, dict(settings)) for name, settings in methods]
        )


def _known_sums(
    a: torch.Tensor, b: torch.Tensor, images: torch.Tensor, filters: torch.Tensor
) -> dict[str, torch.Tensor]:
    return {
        "product": a @ b,
        "convolution": torch.nn.functional.conv2d(images, filters),
        "mean": images.mean(dim=(0, 2, 3)),
    }


def _digest(move: Vector) -> str:
    return hashlib.sha256(move.tobytes()).hexdigest()[:16]


# ---------------------------------------------------------------------------------------- processes


def serve_trial(pipe: Connection, place: WorkerPlace) -> None:
    """What a process does: answer one question after the other until the pipe closes."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    allot_image_memory(place)
    trial = DeviceTrial(place.device)
    with suppress(EOFError, OSError):
        while True:
            number, question, arguments = pipe.recv()
            pipe.send((number, _answer(trial, question, arguments)))


def _answer(trial: DeviceTrial, question: str, arguments: Sequence[Any]) -> Any:
    """The answer, or what went wrong as an error."""
    try:
        return getattr(trial, question)(*arguments)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        return RunFailed(f"{type(error).__name__}: {reason}")


class TrialTooSlow(RunFailed):
    """No answer in the time that there was."""


class TrialProcesses:
    """Processes that answer questions, one at each place."""

    def __init__(
        self, places: Sequence[WorkerPlace], target: Callable[..., None] = serve_trial
    ) -> None:
        self.places = places
        self._workers = [Worker(target, place) for place in places]
        self._questions = 0

    def __enter__(self) -> TrialProcesses:
        return self

    def __exit__(self, *exception: object) -> None:
        stop_workers(self._workers)

    def ask(self, question: str, *arguments: Any, patience: float = 60.0) -> list[Any]:
        """All answers, one a process; a process that dies or fails is an error, and so is one that
        takes longer than `patience` seconds.
        """
        self._questions += 1
        devices = [place.device for place in self.places]
        for device, worker in zip(devices, self._workers, strict=True):
            try:
                worker.send((self._questions, question, arguments))
            except WorkerDied as death:
                raise RunFailed(f"{device}: a process {death.how}{death.advice}") from None
        return [
            self._answer_of(device, worker, patience)
            for device, worker in zip(devices, self._workers, strict=True)
        ]

    def _answer_of(self, device: str, worker: Worker, patience: float) -> Any:
        until = time.monotonic() + patience
        number = 0
        answer: Any = None
        try:
            while number != self._questions:  # what was asked before may be answered late
                if not worker.pipe.poll(max(0.0, until - time.monotonic())):
                    raise TrialTooSlow(f"{device}: no answer within {patience:.0f} s")
                number, answer = worker.receive()
        except WorkerDied as death:
            raise RunFailed(f"{device}: a process {death.how}{death.advice}") from None
        if isinstance(answer, RunFailed):
            raise RunFailed(f"{device}: {answer}")
        return answer

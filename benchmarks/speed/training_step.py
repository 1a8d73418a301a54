"""A training step: ours beside the usual way to write one, and the paper's own on one core."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.speed.timing import (
    Timed,
    TimingSession,
    median_interval,
    ratio_of_times,
    seconds_of,
)
from benchmarks.speed.workloads import PAPER_TRAINING, Workload, workloads
from feddraw.methods.feddraw import feddraw
from feddraw.system.machine import installed
from feddraw.training.augment import augment
from feddraw.training.client import Trainer
from feddraw.training.loop import Examples, LocalTraining, Rows, fit, predict
from feddraw.training.network import Network
from feddraw.training.optimizers import make_optimizer
from feddraw.training.reproducibility import one_thread

PAPER_STEP = Workload(
    "DenseNet121, 224 px",
    model="densenet121",
    pixels=224,
    clients=1,
    steps=1,
    batch=16,
    settings=(("weights", "none"),),
)


def measure_paper_step(session: TimingSession, step: Workload = PAPER_STEP) -> dict[str, Any]:
    """Images a second of DenseNet121 at 224 px, trained with augmentation, smoothing and clipping,
    and tested.
    """
    if step.model == "densenet121" and not installed("monai"):
        return {"missing": "MONAI is not installed"}
    trainer = step.trainer(feddraw().local)
    trainer.training = replace(trainer.training, **PAPER_TRAINING)
    rows = np.arange(step.batch)
    train = our_training_step(trainer, trainer.network, rows)
    works: dict[str, Timed] = {
        "training": partial(_timed_on_one_thread, train),
        "testing": partial(
            _timed_on_one_thread, lambda: predict(trainer.network, trainer.examples, rows)
        ),
    }
    samples = session.interleave(
        f"the paper's step: {step.title}", works, max(1, session.blocks // 3)
    )
    speeds = {
        name: median_interval(step.batch / np.array(seconds)) for name, seconds in samples.items()
    }
    return {
        "title": f"{step.title}, batches of {step.batch}, one core",
        "images_per_second": speeds,
    }


def measure_training_steps(session: TimingSession) -> dict[str, Any]:
    """By workload: a step as peers' examples write it ÷ ours; what augmentation and reading add to
    ours.
    """
    return {
        name: _training_step_ratios(session, workload)
        for name, workload in workloads(session.quick).items()
    }


def _training_step_ratios(session: TimingSession, workload: Workload) -> dict[str, Any]:
    trainer = workload.trainer(feddraw().local)
    trainer.training = replace(trainer.training, clip=5.0)  # as in the usual step
    rows = np.arange(workload.batch)
    images, _ = trainer.examples.batch(rows)
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        works: dict[str, Timed] = {
            "plain": partial(_timed_on_one_thread, usual_training_step(trainer, rows)),
            "ours": partial(
                _timed_on_one_thread,
                our_training_step(trainer, Network(*trainer.build()), rows),
            ),
            "augment": partial(_timed_on_one_thread, lambda: augment(images, generator)),
            "read": _batch_reader(trainer.examples, workload.batch, Path(folder)),
        }
        samples = session.interleave(f"steps: {workload.title}", works, 2 * session.blocks)
    seconds = float(np.median(samples["ours"]))
    return {
        "title": f"{workload.model}, {workload.pixels} px, batches of {workload.batch}",
        "plain_over_ours": ratio_of_times(samples["plain"], samples["ours"]),
        "augment_over_step": ratio_of_times(samples["augment"], samples["ours"]),
        "read_over_step": ratio_of_times(samples["read"], samples["ours"]),
        "images_per_second": workload.batch / seconds,
    }


def our_training_step(trainer: Trainer, network: Network, rows: Rows) -> Callable[[], object]:
    """Our loop over one batch, with the trainer's settings."""
    how = LocalTraining(trainer.training, trainer.smoothed_loss, seed=0)
    optimizer = make_optimizer(network, trainer.training)
    return partial(fit, network, optimizer, trainer.examples, rows, how)


def _batch_reader(examples: Examples, batch: int, folder: Path) -> Timed:
    """A batch of random rows from a file that is mapped to memory, as prepared images are."""
    path = folder / "images.npy"
    np.save(path, np.resize(examples.images, (5000, *examples.images.shape[1:])))
    images = np.load(path, mmap_mode="r", allow_pickle=False)
    rng = np.random.default_rng(0)

    def read() -> float:
        rows = rng.choice(len(images), batch, replace=False)
        return seconds_of(lambda: np.sum(images[rows]))

    return read


def _timed_on_one_thread(work: Callable[[], object]) -> float:
    with one_thread():
        return seconds_of(work)


def usual_training_step(trainer: Trainer, rows: Rows) -> Callable[[], None]:
    """A training step as peers' examples write it: plain layout, an optimiser that goes through the
    layers one by one, gradients clipped likewise."""
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

"""How much a federated round takes beyond its training, and a training step beside the usual way to write one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddraw.bench.bare_loops import CORES, BareProcesses, Workload, bare_loop, one_round, plain_step, workloads
from feddraw.bench.ratios import Session, Timed, ratio, timed
from feddraw.bench.server_step import names_of
from feddraw.core import Correction
from feddraw.engines.processes import Processes
from feddraw.engines.serial import Serial
from feddraw.experiment.run_preparation import initial_model
from feddraw.methods.feddraw import feddraw
from feddraw.training.augment import augment
from feddraw.training.client import Trainer
from feddraw.training.loop import Examples, Rows, fit, make_optimizer, one_thread
from feddraw.training.network import Network


def measure(session: Session) -> dict[str, Any]:
    """By workload: serial ÷ a bare loop, serial ÷ two workers, and two bare processes ÷ two workers."""
    return {name: _rounds(session, workload) for name, workload in workloads(session.quick).items()}


def _rounds(session: Session, workload: Workload) -> dict[str, Any]:
    method = feddraw()
    trainer = workload.trainer(method.local)
    model, clients = initial_model(trainer.build, 0), workload.clients
    engine = Processes(trainer, CORES, names_of(clients))
    with closing(engine) as workers, closing(BareProcesses(workload)) as script:
        works: dict[str, Timed] = {
            "bare": partial(bare_loop, trainer, model),
            "two bare": script,
            "serial": partial(one_round, Serial(trainer), model, method, clients),
            "workers": partial(one_round, workers, model, method, clients),
        }
        samples = session.interleave(f"rounds: {workload.title}", works)
    return {
        "title": workload.title,
        "overhead_serial": ratio(samples["serial"], samples["bare"]),
        "overhead_two_workers": ratio(samples["workers"], samples["bare"]),
        "speedup_two_workers": ratio(samples["serial"], samples["workers"]),
        "two_bare_over_two_workers": ratio(samples["two bare"], samples["workers"]),
        "seconds_serial": float(np.median(samples["serial"])),
    }


# ---------------------------------------------------------------------------------------------------- steps


def measure_steps(session: Session) -> dict[str, Any]:
    """By workload: a step as peers' examples write it ÷ ours; what augmentation and reading add to ours."""
    return {name: _steps(session, workload) for name, workload in workloads(session.quick).items()}


def _steps(session: Session, workload: Workload) -> dict[str, Any]:
    trainer = workload.trainer(feddraw().local)
    rows = np.arange(workload.batch)
    images, _ = trainer.examples.batch(rows)
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        works: dict[str, Timed] = {
            "plain": partial(_timed_on_one_thread, plain_step(trainer, rows)),
            "ours": _our_step(trainer, rows),
            "augment": partial(_timed_on_one_thread, lambda: augment(images, generator)),
            "read": _reading(trainer.examples, workload.batch, Path(folder)),
        }
        samples = session.interleave(f"steps: {workload.title}", works, 2 * session.blocks)
    seconds = float(np.median(samples["ours"]))
    return {
        "title": f"{workload.model}, {workload.pixels} px, batches of {workload.batch}",
        "plain_over_ours": ratio(samples["plain"], samples["ours"]),
        "augment_over_step": ratio(samples["augment"], samples["ours"]),
        "read_over_step": ratio(samples["read"], samples["ours"]),
        "images_per_second": workload.batch / seconds,
    }


def _our_step(trainer: Trainer, rows: Rows) -> Timed:
    """Our loop, one step at a time, with the same clipping."""
    network, training = Network(*trainer.build()), replace(trainer.training, clip=5.0)
    arguments = (training, Correction(), 0, trainer.smoothed_loss, make_optimizer(network, trainer.training))
    return partial(_timed_on_one_thread, lambda: fit(network, trainer.examples, rows, *arguments))


def _reading(examples: Examples, batch: int, folder: Path) -> Timed:
    """A batch of random rows from a file that is mapped to memory, as prepared images are."""
    np.save(folder / "images.npy", np.resize(examples.images, (5000, *examples.images.shape[1:])))
    images, rng = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False), np.random.default_rng(0)

    def read() -> float:
        rows = rng.choice(len(images), batch, replace=False)
        return timed(lambda: np.sum(images[rows]))

    return read


def _timed_on_one_thread(work: Callable[[], object]) -> float:
    with one_thread():
        return timed(work)

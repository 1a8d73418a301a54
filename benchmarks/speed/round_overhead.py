"""How much a federated round takes beyond its training: beside bare loops, serial and with two
workers.

The bare loops are those of a script, on random images; no client's data comes here.
"""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.speed.made_up_model import client_names
from benchmarks.speed.timing import Timed, TimingSession, ratio_of_times, seconds_of
from benchmarks.speed.workloads import CORES, Workload, workloads
from feddraw.core import Local, Method, Model
from feddraw.engines import Engine
from feddraw.engines.processes import Processes
from feddraw.engines.serial import Serial
from feddraw.experiment.run_preparation import initial_model
from feddraw.federation import Federation, federate
from feddraw.methods.feddraw import feddraw
from feddraw.system.workers import Worker, serve, stop_workers
from feddraw.training.client import Trainer
from feddraw.training.loop import epoch_batches
from feddraw.training.reproducibility import one_thread


def measure_round_overhead(session: TimingSession) -> dict[str, Any]:
    """By workload: serial ÷ a bare loop, serial ÷ two workers, and two bare processes ÷ two
    workers.
    """
    return {
        name: _round_ratios(session, workload)
        for name, workload in workloads(session.quick).items()
    }


def _round_ratios(session: TimingSession, workload: Workload) -> dict[str, Any]:
    method = feddraw()
    trainer = workload.trainer(method.local)
    model = initial_model(trainer.build, 0)
    clients = workload.clients
    engine = Processes(trainer, CORES, client_names(clients))
    with closing(engine) as workers, closing(BareProcesses(workload)) as script:
        works: dict[str, Timed] = {
            "bare": partial(bare_loop, trainer, model),
            "two bare": script,
            "serial": partial(timed_round, Serial(trainer), model, method, clients),
            "workers": partial(timed_round, workers, model, method, clients),
        }
        samples = session.interleave(f"rounds: {workload.title}", works)
    return {
        "title": workload.title,
        "overhead_serial": ratio_of_times(samples["serial"], samples["bare"]),
        "overhead_two_workers": ratio_of_times(samples["workers"], samples["bare"]),
        "speedup_two_workers": ratio_of_times(samples["serial"], samples["workers"]),
        "two_bare_over_two_workers": ratio_of_times(samples["two bare"], samples["workers"]),
        "seconds_serial": float(np.median(samples["serial"])),
    }


def timed_round(engine: Engine, model: Model, method: Method, clients: int) -> float:
    """Seconds of a federated round."""
    federation = Federation(method, engine, client_names(clients), rounds=15, seed=0)
    return seconds_of(lambda: next(federate(federation, model)))


def bare_loop(trainer: Trainer, model: Model) -> float:
    """Seconds of the same steps as a careful script would write them: channels last, fused Adam,
    gathered batches.
    """
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
    """Two processes of a script, each with its half of the clients: what two cores can do without a
    federation.
    """

    def __init__(self, workload: Workload) -> None:
        self._workers = [Worker(_bare_process, workload, half) for half in range(CORES)]

    def __call__(self) -> float:
        """Seconds until both are done."""
        start = time.perf_counter()
        for worker in self._workers:
            worker.send("round")
        for worker in self._workers:
            worker.receive()
        return time.perf_counter() - start

    def close(self) -> None:
        stop_workers(self._workers)


def _bare_process(pipe: Connection, workload: Workload, half: int) -> None:
    torch.set_num_threads(1)
    trainer = workload.trainer(Local())
    trainer.shards = trainer.shards[half::CORES]
    model = initial_model(trainer.build, 0)
    serve(pipe, lambda _: bare_loop(trainer, model))

"""How much a federated round takes beyond its training: beside bare loops, serial and with two workers."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from feddraw.bench.bare_loops import BareProcesses, bare_loop
from feddraw.bench.made_up_model import client_names
from feddraw.bench.timing import Timed, TimingSession, ratio_of_times, seconds_of
from feddraw.bench.workloads import CORES, Workload, workloads
from feddraw.core import Method, Model
from feddraw.engines import Engine
from feddraw.engines.processes import Processes
from feddraw.engines.serial import Serial
from feddraw.experiment.run_preparation import initial_model
from feddraw.federation import federate
from feddraw.methods.feddraw import feddraw


def measure_round_overhead(session: TimingSession) -> dict[str, Any]:
    """By workload: serial ÷ a bare loop, serial ÷ two workers, and two bare processes ÷ two workers."""
    return {name: _round_ratios(session, workload) for name, workload in workloads(session.quick).items()}


def _round_ratios(session: TimingSession, workload: Workload) -> dict[str, Any]:
    method = feddraw()
    trainer = workload.trainer(method.local)
    model, clients = initial_model(trainer.build, 0), workload.clients
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
    return seconds_of(lambda: next(federate(model, method, engine, client_names(clients), rounds=15, seed=0)))

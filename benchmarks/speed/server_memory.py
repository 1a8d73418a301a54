"""What a server holds at its peak while updates stream in, each number of clients in a process of
its own.

    python -m benchmarks.speed.server_memory CLIENTS [ROWS]

ROWS are those of the engine's inbox: one, as for the serial engine, or three for two workers. The
clients are made of nothing but their answers, so that the process is a server's alone; it does not
import torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.speed.made_up_model import client_names, made_up_model
from benchmarks.speed.timing import TimingSession, measured_in_own_process, seconds_of
from feddraw.core import Job, Memory, Model, Update
from feddraw.engines import Rows, Scores
from feddraw.federation import Federation, federate
from feddraw.methods.feddraw import feddraw
from feddraw.server.collectors import Streaming
from feddraw.system.machine import peak_memory

CLIENT_COUNTS = (10, 100, 1000)
INBOXES = {"serial": 1, "two workers": 3}  # updates that there is room for


def measure_server_memory(
    session: TimingSession, counts: Sequence[int] = CLIENT_COUNTS
) -> dict[str, Any]:
    """Peak megabytes and seconds of the server's part of a round, by engine and number of
    clients.
    """
    by_engine: dict[str, Any] = {}
    for engine, rows in INBOXES.items():
        peaks = {}
        what = f"memory: a server of 7 million parameters, streaming, {engine}"
        for clients in session.each(what, counts):
            peaks[str(clients)] = measured_in_own_process(
                "benchmarks.speed.server_memory", str(clients), str(rows)
            )
        most = peaks[str(counts[-1])]["megabytes"]
        fewest = peaks[str(counts[0])]["megabytes"]
        by_engine[engine] = {"clients": peaks, "most_over_fewest": most / fewest}
    return by_engine


class InstantClients:
    """An engine whose clients answer at once: each moves the sent model a little, in a row of the
    inbox.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.memory: dict[int, Memory] = {}

    def commit(self, clients: Collection[int]) -> None:
        pass

    def train(self, jobs: Sequence[Job], *, in_turn: bool = False) -> Iterator[Update]:
        inbox = np.empty((self._rows, len(jobs[0].model.params)), np.float32)
        for number, job in enumerate(jobs):
            row = inbox[number % self._rows]
            np.multiply(job.model.params, np.float32(1 + 1e-6 * (job.client + 1)), out=row)
            yield Update(job.client, replace(job.model, params=row), 100, 1, {"loss": 0.5})

    def predict(self, model: Model, rows: Rows) -> Scores:
        raise NotImplementedError("these clients have no images")

    def close(self) -> None:
        pass


def server_memory_of_round(clients: int, rows: int, model: Model) -> dict[str, float]:
    """Seconds and peak megabytes of one round of FedDRAW over so many clients."""
    engine = InstantClients(rows)
    names = client_names(clients)
    collect = Streaming([100] * clients)
    federation = Federation(feddraw(), engine, names, rounds=15, seed=0, collect=collect)
    seconds = seconds_of(lambda: next(federate(federation, model)))
    return {"megabytes": peak_memory() / 2**20, "seconds": seconds}


if __name__ == "__main__":
    inbox_rows = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    print(json.dumps(server_memory_of_round(int(sys.argv[1]), inbox_rows, made_up_model())))

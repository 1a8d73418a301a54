"""`--engine flower`: the package's own loop, with clients that answer over a Flower Grid. The bits
do not change.

With Ray it is Flower's simulation in worker processes; without, every message is answered in this
process. What clients remember travels with the messages here, so that a checkpoint holds it and any
engine can go on from it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from feddraw.core import Job, Model, Update
from feddraw.engines import Engine, Rows, Scores
from feddraw.engines._memory import EngineWithMemory
from feddraw.engines.serial import Serial
from feddraw.errors import RunFailed
from feddraw.experiment.run_preparation import PreparedRun
from feddraw.flower import job_orders, reply_intake
from feddraw.flower.array_records import arrays_to_vectors, model_to_arrays, vectors_to_arrays
from feddraw.flower.client_app import client
from feddraw.flower.in_process_grid import InProcessGrid
from feddraw.flower.ray_simulation import RaySimulation, simulated_site, site_on_ray
from feddraw.flower.reply_intake import ReplyFormat
from feddraw.system.machine import installed

WAIT_FOR_NODES = 120.0  # seconds for simulated nodes to come up


def flower(setup: PreparedRun, workers: int) -> Engine:
    """Flower's simulation where Ray is installed, else clients in this process."""
    if installed("ray"):
        table = json.dumps(setup.experiment.table())
        simulation = RaySimulation(client(partial(site_on_ray, table)), len(setup.clients), workers)
        return FlowerEngine(simulation.grid(), setup, simulation)
    nodes = [{"partition-id": number} for number in range(len(setup.clients))]
    return FlowerEngine(InProcessGrid(client(partial(simulated_site, setup)), nodes), setup)


class FlowerEngine(EngineWithMemory):
    """An engine whose clients are reached over a Grid."""

    def __init__(
        self, grid: Grid, setup: PreparedRun, simulation: RaySimulation | None = None
    ) -> None:
        super().__init__()
        self._grid, self._setup, self._simulation = grid, setup, simulation
        self._evaluation = Serial(setup.trainer)  # evaluation is the server's own
        self._numbers = {name: number for number, name in enumerate(setup.clients)}
        self._room: Model | None = None
        self._nodes = self._nodes_by_client()

    def _nodes_by_client(self) -> dict[int, int]:
        """Client to node: simulated nodes get new ids with every start."""
        nodes = self._wait_for_nodes()
        asked = [
            Message(RecordDict(), node, MessageType.QUERY, group_id="roll call") for node in nodes
        ]
        replies, failures = reply_intake.read_replies(self._exchange(asked), nodes, "roll call")
        self._stop_on_failures(failures, {node: f"node {node}" for node in nodes})
        return {self._numbers[reply.name]: reply.node for reply in replies}

    def _wait_for_nodes(self) -> list[int]:
        """All nodes: simulated ones come up while the server already runs."""
        deadline = time.monotonic() + WAIT_FOR_NODES
        while len(nodes := list(self._grid.get_node_ids())) < len(self._numbers):
            if self._simulation is not None:
                self._simulation.stop_if_over()
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"only {len(nodes)} of {len(self._numbers)} nodes came up within"
                    f" {WAIT_FOR_NODES:g} s"
                )
            time.sleep(0.05)
        return nodes

    def _exchange(self, messages: Sequence[Message]) -> Iterable[Message]:
        if self._simulation is None:
            return self._grid.send_and_receive(messages)
        return self._simulation.send_and_receive(self._grid, messages)

    def train(self, jobs: Sequence[Job], *, in_turn: bool = False) -> Iterator[Update]:
        """All replies are there at once, so in turn saves no memory here."""
        group, sent = str(jobs[0].round), jobs[0].model
        arrays = model_to_arrays(sent)
        names = {self._nodes[job.client]: self._setup.clients[job.client] for job in jobs}
        messages = [self._job_message(job, arrays, group) for job in jobs]
        replies, failures = reply_intake.read_replies(self._exchange(messages), list(names), group)
        silent = names.keys() - failures.keys() - {reply.node for reply in replies}
        self._stop_on_failures(failures | dict.fromkeys(silent, "it did not answer"), names)
        for reply in replies:
            self._learnt[self._numbers[reply.name]] = arrays_to_vectors(
                reply.content.array_records["memory"]
            )
        given = (replies, self._numbers, sent, ReplyFormat(self._setup.method.sends))
        updates, refused, self._room = reply_intake.decode_replies(*given, reuse=self._room)
        if refused:
            raise RunFailed(
                f"what client {min(refused)} sent cannot be read: {refused[min(refused)]}"
            )
        yield from sorted(updates, key=lambda update: update.client) if in_turn else updates

    def _job_message(self, job: Job, arrays: ArrayRecord, group: str) -> Message:
        numbers = {
            "round": job.round,
            "rounds": job.rounds,
            "client-seed": job.seed,
            "effort": job.effort,
        }
        content = RecordDict(
            {"arrays": arrays, "config": job_orders.add_orders(ConfigRecord(), numbers)}
        )
        content["memory"] = vectors_to_arrays(self.memory.get(job.client, {}))
        if job.broadcast:
            content["broadcast"] = vectors_to_arrays(job.broadcast)
        return Message(content, self._nodes[job.client], MessageType.TRAIN, group_id=group)

    def _stop_on_failures(self, failures: Mapping[int, str], names: Mapping[int, str]) -> None:
        for node, why in failures.items():
            raise RunFailed(f"training client {names.get(node, f'node {node}')} failed: {why}")

    def predict(self, model: Model, rows: Rows) -> Scores:
        return self._evaluation.predict(model, rows)

    def close(self) -> None:
        if self._simulation is not None:
            self._simulation.close()

"""`--engine flower`: the package's own loop, with clients that answer over a Flower Grid. The bits
do not change.

With Ray it is Flower's simulation in worker processes; without, every message is answered in this
process. What clients remember travels with the messages here, so that a checkpoint holds it and any
engine can resume from it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from feddraw.core import Job, Model, Update
from feddraw.engines import Engine, Rows, Scores
from feddraw.engines._memory import EngineWithMemory
from feddraw.engines.serial import Serial
from feddraw.errors import RunFailed
from feddraw.experiment.run_preparation import PreparedRun, prepare
from feddraw.experiment.settings import Experiment
from feddraw.flower import job_orders, reply_intake
from feddraw.flower.array_records import arrays_to_vectors, model_to_arrays, vectors_to_arrays
from feddraw.flower.client_app import Site, client
from feddraw.flower.in_process_grid import InProcessGrid
from feddraw.flower.ray_simulation import RaySimulation
from feddraw.flower.reply_intake import Reply, ReplyFormat
from feddraw.system.machine import installed

WAIT_FOR_NODES = 120.0  # seconds for simulated nodes to come up
POLL_SECONDS = 0.05  # between two looks for them
ROLL_CALL = "roll call"  # the group of the first messages, which ask for the clients' names


def flower(setup: PreparedRun, workers: int) -> Engine:
    """Flower's simulation where Ray is installed, else clients in this process."""
    if installed("ray"):
        table = json.dumps(setup.experiment.table())
        app = client(partial(site_on_ray, table))
        simulation = RaySimulation(app, len(setup.clients), workers)
        return FlowerEngine(simulation.grid(), setup, simulation)
    nodes = [{"partition-id": number} for number in range(len(setup.clients))]
    app = client(partial(simulated_site, setup))
    return FlowerEngine(InProcessGrid(app, nodes), setup)


def simulated_site(setup: PreparedRun, context: Context) -> Site:
    """The client that a simulated node is."""
    number = int(context.node_config["partition-id"])
    return Site(setup.trainer, setup.clients[number], number=number, shard=number)


def site_on_ray(table: str, context: Context) -> Site:
    """The same in a worker process, which knows the experiment by its settings as JSON."""
    return simulated_site(_setup_on_ray(table), context)


@lru_cache(maxsize=1)
def _setup_on_ray(table: str) -> PreparedRun:
    """Prepared once per worker process."""
    return prepare(Experiment.of(json.loads(table)))


class FlowerEngine(EngineWithMemory):
    """An engine whose clients are reached over a Grid."""

    def __init__(
        self, grid: Grid, setup: PreparedRun, simulation: RaySimulation | None = None
    ) -> None:
        super().__init__()
        self._grid = grid
        self._setup = setup
        self._simulation = simulation
        self._evaluation = Serial(setup.trainer)  # evaluation is the server's own
        self._numbers = {name: number for number, name in enumerate(setup.clients)}
        self._matrices: Model | None = None  # where the replies of a round are laid out
        self._nodes = self._nodes_by_client()

    def _nodes_by_client(self) -> dict[int, int]:
        """Client to node: simulated nodes get new ids with every start."""
        nodes = self._wait_for_nodes()
        calls = [
            Message(RecordDict(), node, MessageType.QUERY, group_id=ROLL_CALL) for node in nodes
        ]
        replies, failures = reply_intake.read_replies(self._exchange(calls), nodes, ROLL_CALL)
        _stop_on_failures(failures, {node: f"node {node}" for node in nodes})
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
            time.sleep(POLL_SECONDS)
        return nodes

    def _exchange(self, messages: Sequence[Message]) -> Iterable[Message]:
        if self._simulation is None:
            return self._grid.send_and_receive(messages)
        return self._simulation.send_and_receive(self._grid, messages)

    def train(self, jobs: Sequence[Job], *, in_turn: bool = False) -> Iterator[Update]:
        """All replies are there at once, so in turn saves no memory here."""
        sent = jobs[0].model
        replies = self._replies_to(jobs)
        for reply in replies:
            memory = arrays_to_vectors(reply.content.array_records["memory"])
            self._learnt[self._numbers[reply.name]] = memory
        format = ReplyFormat(self._setup.method.extras)
        decoded = reply_intake.decode_replies(
            replies, self._numbers, sent, format, reuse=self._matrices
        )
        self._matrices = decoded.matrices
        for name, why in sorted(decoded.refused.items()):
            raise RunFailed(f"what client {name} sent cannot be read: {why}")
        if in_turn:
            decoded.updates.sort(key=lambda update: update.client)
        yield from decoded.updates

    def _replies_to(self, jobs: Sequence[Job]) -> list[Reply]:
        """One reply per job; a run whose client fails or does not answer ends."""
        group = str(jobs[0].round)
        arrays = model_to_arrays(jobs[0].model)
        names = {self._nodes[job.client]: self._setup.clients[job.client] for job in jobs}
        messages = [self._job_message(job, arrays, group) for job in jobs]
        replies, failures = reply_intake.read_replies(self._exchange(messages), list(names), group)
        silent = names.keys() - failures.keys() - {reply.node for reply in replies}
        _stop_on_failures(failures | dict.fromkeys(silent, "it did not answer"), names)
        return replies

    def _job_message(self, job: Job, arrays: ArrayRecord, group: str) -> Message:
        orders = {
            "round": job.round,
            "rounds": job.rounds,
            "client-seed": job.seed,
            "effort": job.effort,
        }
        content = RecordDict(
            {"arrays": arrays, "config": job_orders.add_orders(ConfigRecord(), orders)}
        )
        content["memory"] = vectors_to_arrays(self.memory.get(job.client, {}))
        if job.broadcast:
            content["broadcast"] = vectors_to_arrays(job.broadcast)
        return Message(content, self._nodes[job.client], MessageType.TRAIN, group_id=group)

    def predict(self, model: Model, rows: Rows) -> Scores:
        return self._evaluation.predict(model, rows)

    def close(self) -> None:
        if self._simulation is not None:
            self._simulation.close()


def _stop_on_failures(failures: Mapping[int, str], names: Mapping[int, str]) -> None:
    """End the run with the first failure, which is known by its node."""
    for node, why in failures.items():
        raise RunFailed(f"training client {names.get(node, f'node {node}')} failed: {why}")

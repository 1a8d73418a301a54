"""The one federated loop: jobs out, updates in, aggregate, and yield the result of the round."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from feddraw.core import Job, Method, Model, State, Update
from feddraw.engines import Engine
from feddraw.server.collectors import Together
from feddraw.server.round import Collector, Round, RoundResult

OnUpdate = Callable[[int, Update], None]  # called with the round and each update as it arrives


def client_seed(run: int, round: int, client: int) -> int:
    """The seed of one client's work in one round: the same for every method and every engine."""
    sequence = np.random.SeedSequence([run, round, client])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(frozen=True, eq=False)
class Federation:
    """A method, the clients that train by it, and the server that collects their updates."""

    method: Method
    engine: Engine
    clients: Sequence[str]
    rounds: int
    seed: int
    collect: Collector = field(default_factory=Together)
    # By round, the clients that are sampled and the share of its steps that each takes. None: all
    # clients, all steps.
    efforts: Callable[[int], Mapping[int, float]] | None = None
    on_update: OnUpdate | None = None

    def sampled(self, round: int) -> Mapping[int, float]:
        """Who trains in a round, and with what share of its steps."""
        if self.efforts is None:
            return dict.fromkeys(range(len(self.clients)), 1.0)
        return self.efforts(round)


def federate(
    federation: Federation, model: Model, *, start: int = 0, state: State | None = None
) -> Iterator[RoundResult]:
    """Train round by round; with `start` and `state`, continue from a checkpoint."""
    method = federation.method
    state = method.init(model) if state is None else state
    for number in range(start, federation.rounds):
        began = time.perf_counter()
        efforts = federation.sampled(number)
        round = Round(
            number=number,
            rounds=federation.rounds,
            sent=model,
            method=method,
            state=state,
            clients=federation.clients,
            sampled=efforts,
        )
        jobs = _jobs(federation, round, efforts)
        updates = federation.engine.train(jobs, in_turn=federation.collect.in_turn)
        arrivals = _Arrivals(federation, number)
        result = federation.collect(round, arrivals.watched(updates))
        ended = time.perf_counter()
        model = result.next_model
        state = result.state
        # The ledger has a line for each client in this order, then those of strangers.
        entries = result.ledger[: len(federation.clients)]
        federation.engine.commit([i for i, entry in enumerate(entries) if entry.weighted])
        trained = arrivals.last or ended
        seconds = {"training": trained - began, "aggregation": ended - trained}
        yield replace(result, seconds=seconds, client_seconds=arrivals.seconds)


def _jobs(federation: Federation, round: Round, efforts: Mapping[int, float]) -> list[Job]:
    broadcast = round.method.broadcast(round.state)
    return [
        Job(
            round=round.number,
            rounds=round.rounds,
            client=client,
            seed=client_seed(federation.seed, round.number, client),
            model=round.sent,
            broadcast=broadcast,
            effort=effort,
        )
        for client, effort in efforts.items()
    ]


class _Arrivals:
    """Watches the updates of a round as they arrive."""

    def __init__(self, federation: Federation, round: int) -> None:
        self._federation = federation
        self._round = round
        self.seconds: dict[str, float] = {}  # by client, how long it worked
        self.last: float = 0.0  # when the last update had arrived

    def watched(self, updates: Iterable[Update]) -> Iterator[Update]:
        """The updates as they come, each reported."""
        clients = self._federation.clients
        for update in updates:
            if 0 <= update.client < len(clients) and math.isfinite(update.seconds):
                self.seconds[clients[update.client]] = update.seconds
            if self._federation.on_update is not None:
                self._federation.on_update(self._round, update)
            yield update
        self.last = time.perf_counter()

"""The one federated loop: jobs out, updates in, aggregate, and yield the result of the round."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from feddraw.core import Job, Method, Model, Proxy, State, Update
from feddraw.engines import Engine
from feddraw.server.gate import Gate
from feddraw.server.policy import Policy
from feddraw.server.round import RoundResult, aggregate_round
from feddraw.server.streaming import aggregate_stream

if TYPE_CHECKING:
    from feddraw.secure.rounds.in_process import InProcessSecureRounds

OnUpdate = Callable[[int, Update], None]  # called with the round and each update as it comes


def client_seed(run: int, round: int, client: int) -> int:
    """The seed of one client's work in one round: the same for every method and under every
    engine.
    """
    return int(
        np.random.SeedSequence([run, round, client]).generate_state(1, np.uint64)[0] >> np.uint64(1)
    )


def federate(
    model: Model,
    method: Method,
    engine: Engine,
    clients: Sequence[str],
    *,
    rounds: int,
    seed: int,
    start: int = 0,
    state: State | None = None,
    gate: Gate | None = None,
    policy: Policy | None = None,
    efforts: Callable[[int], Mapping[int, float]] | None = None,
    proxy: Proxy | None = None,
    sizes: Sequence[int] | None = None,
    on_update: OnUpdate | None = None,
    secure_rounds: InProcessSecureRounds | None = None,
) -> Iterator[RoundResult]:
    """Train for some rounds, or, with `start` and `state`, continue from a checkpoint.

    `efforts` gives the clients asked in a round and the share of its steps that each takes; left
    out, all take all. `proxy` are labelled images at the server, for the methods that need some.
    With `sizes`, the number of images that each client will report, updates are summed as they come
    (see `streaming`). With `secure_rounds` the server sees nothing of an update but what its client
    says in clear, and the sum of all.
    """
    state = method.init(model) if state is None else state
    for round in range(start, rounds):
        began = time.perf_counter()
        broadcast = method.broadcast(state)
        asked = dict.fromkeys(range(len(clients)), 1.0) if efforts is None else efforts(round)
        jobs = [
            Job(round, rounds, i, client_seed(seed, round, i), model, broadcast, asked[i])
            for i in asked
        ]
        took: dict[str, float] = {}
        arriving = engine.train(jobs) if sizes is None else engine.train(jobs, in_turn=True)
        coming = _federation_updates(arriving, clients, took, round, on_update)
        this = (round, rounds, model, method, state)
        if secure_rounds is not None:
            result = secure_rounds.round(*this, coming, asked, gate, policy)
            trained = time.perf_counter()
        elif sizes is None:
            updates = list(coming)
            trained = time.perf_counter()
            result = aggregate_round(
                *this, updates, clients, gate, asked=asked, proxy=proxy, policy=policy
            )
        else:
            announced = {client: sizes[client] for client in asked}
            result = aggregate_stream(*this, coming, clients, announced, gate, policy)
            trained = time.perf_counter()  # sums were taken while others trained
        model, state = result.next_model, result.state
        engine.commit(
            [number for number, entry in enumerate(result.ledger[: len(clients)]) if entry.counted]
        )
        seconds = {"training": trained - began, "aggregation": time.perf_counter() - trained}
        yield replace(result, seconds=seconds, client_seconds=took)


def _federation_updates(
    updates: Iterable[Update],
    clients: Sequence[str],
    took: dict[str, float],
    round: int,
    on_update: OnUpdate | None,
) -> Iterator[Update]:
    """The updates as they come, each reported; how long its client worked goes into `took`."""
    for update in updates:
        if update.client < len(clients) and math.isfinite(update.seconds):
            took[clients[update.client]] = update.seconds
        if on_update is not None:
            on_update(round, update)
        yield update

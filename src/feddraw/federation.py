"""The one federated loop: jobs out, updates in, aggregate, and yield the result of the round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feddraw.core import Job, Method, Model, Proxy, State, Update
from feddraw.engines import Engine
from feddraw.server.gate import Gate
from feddraw.server.ledger import LedgerEntry, PieceEntry
from feddraw.server.policy import Policy
from feddraw.server.round import aggregate_round, aggregate_stream


@dataclass(frozen=True, eq=False)
class RoundResult:
    """What a round gave. The model is the one to evaluate; `next_model` is the one that is sent next."""

    round: int
    model: Model
    next_model: Model
    state: State
    ledger: tuple[LedgerEntry, ...]
    loss: float  # mean training loss of the clients that counted
    seconds: Mapping[str, float]  # training and aggregation
    pieces: tuple[PieceEntry, ...] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def diverged(self) -> str:
        """In what way this round shows that the run has diverged; empty if it does not."""
        return divergence(self.ledger, self.metrics)

    @property
    def weights(self) -> dict[str, float]:
        """Client to weight, for those that counted."""
        return {entry.client: entry.weight for entry in self.ledger if entry.counted}


def divergence(ledger: Sequence[LedgerEntry], metrics: Mapping[str, Any]) -> str:
    """What of a round is not a finite number any more: the model's scores, or every update that came."""
    broken = metrics.get("validation", {}).get("not_finite", ())
    if broken:
        return f"the model's scores are not finite numbers ({', '.join(broken)})"
    came = [entry.status for entry in ledger if entry.status not in ("missing", "not asked")]
    if came and all(status.startswith("refused") and "finite" in status for status in came):
        return "every update was refused, because none was finite"
    return ""


def seed_of(run: int, round: int, client: int) -> int:
    """The seed of one client's work in one round: the same for every method and under every engine."""
    return int(np.random.SeedSequence([run, round, client]).generate_state(1, np.uint64)[0] >> np.uint64(1))


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
    on_update: Callable[[int, Update], None] | None = None,
) -> Iterator[RoundResult]:
    """Train together for some rounds, or, with `start` and `state`, go on from where a checkpoint stands.

    `efforts` gives the clients asked in a round and the share of its steps that each takes; left out, all take all.
    `proxy` are labelled images at the server, for the methods that need some. With `sizes`, what each client will say
    it has, updates are summed as they come (see `streaming`).
    """
    state = method.init(model) if state is None else state
    for round in range(start, rounds):
        began = time.perf_counter()
        broadcast = method.broadcast(state)
        asked = dict.fromkeys(range(len(clients)), 1.0) if efforts is None else efforts(round)
        jobs = [Job(round, rounds, i, seed_of(seed, round, i), model, broadcast, asked[i]) for i in asked]
        coming = _told(engine.train(jobs) if sizes is None else engine.train(jobs, in_turn=True), round, on_update)
        if sizes is None:
            updates = list(coming)
            trained = time.perf_counter()
            this = (round, rounds, model, method, state)
            outcome = aggregate_round(*this, updates, clients, gate, asked=asked, proxy=proxy, policy=policy)
        else:
            announced = {client: sizes[client] for client in asked}
            outcome = aggregate_stream(round, rounds, model, method, state, coming, clients, announced, gate, policy)
            trained = time.perf_counter()  # sums were taken while others trained
        model, state = outcome.model, outcome.state
        engine.commit([place for place, entry in enumerate(outcome.ledger[: len(clients)]) if entry.counted])
        seconds = {"training": trained - began, "aggregation": time.perf_counter() - trained}
        written = (outcome.ledger, outcome.loss, seconds, outcome.pieces)
        yield RoundResult(round, method.shown(model, state), model, state, *written)


def _told(updates: Iterable[Update], round: int, on_update: Callable[[int, Update], None] | None) -> Iterator[Update]:
    for update in updates:
        if on_update is not None:
            on_update(round, update)
        yield update

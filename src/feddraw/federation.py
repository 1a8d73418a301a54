"""The one federated loop: jobs out, updates in, weigh, step, and yield what came of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feddraw.core import Aggregate, Cohort, Job, Method, Model, State, Update
from feddraw.engines import Engine
from feddraw.gate import Verdict, inspect


@dataclass(frozen=True)
class Entry:
    """One client's line of one round in the ledger of who counted how much."""

    round: int
    client: str
    size: int
    steps: int
    prior: float
    similarity: float
    gamma: float
    beta: float
    reputation: float
    weight: float  # the coefficient of the client's move
    influence: float  # the weighted length of its move, as a share of all clients'
    status: str  # counted, "refused: why", or missing


@dataclass(frozen=True, eq=False)
class RoundResult:
    """What a round gave. The model is the one to evaluate; `next_model` is the one that is sent next."""

    round: int
    model: Model
    next_model: Model
    state: State
    ledger: tuple[Entry, ...]
    loss: float  # mean training loss of the clients that counted
    seconds: Mapping[str, float]  # training and aggregation
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, float]:
        """Client to weight, for those that counted."""
        return {entry.client: entry.weight for entry in self.ledger if entry.status == "counted"}


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
    on_update: Callable[[int, Update], None] | None = None,
) -> Iterator[RoundResult]:
    """Train together for some rounds, or, with `start` and `state`, go on from where a checkpoint stands."""
    state = method.init(model) if state is None else state
    for round in range(start, rounds):
        began = time.perf_counter()
        broadcast = method.broadcast(state)
        jobs = [Job(round, rounds, i, seed_of(seed, round, i), model, broadcast) for i in range(len(clients))]
        updates = []
        for update in engine.train(jobs):
            updates.append(update)
            if on_update is not None:
                on_update(round, update)
        trained = time.perf_counter()

        updates.sort(key=lambda update: update.client)  # never the order of arrival
        verdicts = {update.client: inspect(update, model) for update in updates}
        accepted = [update for update in updates if not verdicts[update.client].reason]
        aggregate = None
        if accepted:  # else the model stays as it was
            aggregate = method.aggregate(Cohort(round, rounds, model, accepted, len(clients)), state)
            model, state = aggregate.model, aggregate.state
        seconds = {"training": trained - began, "aggregation": time.perf_counter() - trained}

        ledger = _ledger(round, clients, updates, verdicts, aggregate)
        loss = float(np.mean([update.metrics["loss"] for update in accepted])) if accepted else math.nan
        yield RoundResult(round, method.shown(model, state), model, state, ledger, loss, seconds)


def _ledger(
    round: int,
    clients: Sequence[str],
    updates: Sequence[Update],
    verdicts: Mapping[int, Verdict],
    aggregate: Aggregate | None,
) -> tuple[Entry, ...]:
    """A line for every client of the federation, counted or not."""
    came = {update.client: update for update in updates}
    counted = [client for client in sorted(came) if not verdicts[client].reason]
    place = {client: position for position, client in enumerate(counted)}
    moves = np.array([verdicts[client].distance for client in counted])
    coefficients = np.zeros(0) if aggregate is None else aggregate.coefficients
    lengths = np.abs(coefficients) * moves
    influence = lengths / lengths.sum() if lengths.sum() > 0 else np.full(len(counted), math.nan)
    parts = {} if aggregate is None else aggregate.weights.parts

    def part(name: str, client: int) -> float:
        value = parts.get(name)
        number = value[place[client]] if isinstance(value, np.ndarray) else value
        return math.nan if number is None else float(number)

    lines = []
    for client, name in enumerate(clients):
        update = came.get(client)
        size, steps = (0, 0) if update is None else (update.size, update.steps)
        if client not in place:
            status = "missing" if update is None else f"refused: {verdicts[client].reason}"
            lines.append(Entry(round, name, size, steps, *[math.nan] * 5, weight=0.0, influence=0.0, status=status))
            continue
        explained = [part(name, client) for name in ("prior", "similarity", "gamma", "beta", "reputation")]
        shares = float(coefficients[place[client]]), float(influence[place[client]])
        lines.append(Entry(round, name, size, steps, *explained, *shares, status="counted"))
    return tuple(lines)

"""The one federated loop: jobs out, updates in, weigh, step, and yield what came of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from feddraw.core import Aggregate, Cohort, Job, Method, Model, Piece, Proxy, State, Update
from feddraw.engines import Engine
from feddraw.errors import UserError
from feddraw.gate import Gate, Verdict, compare, inspect, judge, look_at_all
from feddraw.policy import Bound, Policy, remark
from feddraw.streaming import Stream

STREAM_WEIGHTS = (
    "a stream adds an update before all weights are known, so a policy cannot limit them: set stream = false, or "
    "leave only policy.max_size and policy.max_size_times"
)


@dataclass(frozen=True)
class LedgerEntry:
    """One client's line of one round in the ledger of who counted how much."""

    round: int
    client: str
    size: float
    steps: int
    prior: float = math.nan  # where the method has no such part, it is not a number
    similarity: float = math.nan
    gamma: float = math.nan
    beta: float = math.nan
    reputation: float = math.nan
    weight: float = 0.0  # the coefficient of the client's move
    influence: float = 0.0  # the weighted length of its move, as a share of all clients'
    status: str = "counted"  # or "counted: and what was noted", "refused: why", "missing", "not asked"
    proposed: float = math.nan  # the rule's weight before the policy, where there is one
    allowed: float = math.nan  # and after it
    clause: str = ""  # the policy's setting that decided it

    @property
    def counted(self) -> bool:
        return self.status.startswith("counted")


@dataclass(frozen=True)
class PieceEntry:
    """One client's weight in one round for a piece of the model, where a rule weighs pieces by themselves."""

    round: int
    client: str
    piece: str  # a layer, or a class
    similarity: float = math.nan
    reputation: float = math.nan
    weight: float = 0.0
    proposed: float = math.nan  # before the policy, where there is one
    clause: str = ""


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
            settled = settle(*this, updates, clients, gate, asked=asked, proxy=proxy, policy=policy)
        else:
            announced = {client: sizes[client] for client in asked}
            settled = settle_stream(round, rounds, model, method, state, coming, clients, announced, gate, policy)
            trained = time.perf_counter()  # sums were taken while others trained
        model, state = settled.model, settled.state
        engine.commit([place for place, entry in enumerate(settled.ledger[: len(clients)]) if entry.counted])
        seconds = {"training": trained - began, "aggregation": time.perf_counter() - trained}
        outcome = (settled.ledger, settled.loss, seconds, settled.pieces)
        yield RoundResult(round, method.shown(model, state), model, state, *outcome)


@dataclass(frozen=True, eq=False)
class Settled:
    """What a server makes of a round's updates."""

    model: Model  # the one that is sent next
    state: State
    ledger: tuple[LedgerEntry, ...]
    pieces: tuple[PieceEntry, ...]
    loss: float


def settle(
    round: int,
    rounds: int,
    model: Model,
    method: Method,
    state: State,
    updates: Sequence[Update],
    clients: Sequence[str],
    gate: Gate | None = None,
    *,
    asked: Collection[int] | None = None,  # left out: all
    proxy: Proxy | None = None,
    policy: Policy | None = None,
) -> Settled:
    """Judge the updates, weigh and step. Where none is accepted, the model stays as it was."""
    if method.weighting.proxy and proxy is None:
        raise UserError("this weighting needs labelled images at the server")
    gate, policy = gate or Gate(), policy or Policy()
    bound = policy.bound(clients, method.server)
    updates = sorted(updates, key=lambda update: update.client)  # never the order of arrival
    looked = look_at_all(updates, model, method.sends, len(clients), gate)
    sizes = {update.client: update.size for update in updates if not looked[update.client].reason}
    believed = policy.believed(sizes)
    updates = [_believed(update, believed) for update in updates]
    whole = [update for update in updates if not looked[update.client].reason]
    cohort = Cohort(round, rounds, model, whole, len(clients), proxy)
    aggregate = _hopeful(method, cohort, state, bound)
    accepted, verdicts = judge(cohort, looked, gate)
    if accepted != whole or aggregate is None:
        aggregate = method.aggregate(replace(cohort, updates=accepted), state, bound) if accepted else None
    verdicts = _noted(verdicts, _remarks(sizes, believed, accepted, aggregate))
    ledger = _ledger(round, clients, range(len(clients)) if asked is None else asked, updates, verdicts, aggregate)
    return _settled(aggregate, Settled(model, state, ledger, (), math.nan), accepted, clients)


def _hopeful(method: Method, cohort: Cohort, state: State, bound: Bound | None) -> Aggregate | None:
    """What comes of the round if the gate refuses nobody: the sum finds the distances that the gate wants on its way.

    Only for rules that weigh each client by itself, which numbers that are yet to be refused cannot mislead for long.
    """
    if not (method.streams and cohort.updates):
        return None
    try:
        with np.errstate(all="ignore"):
            return method.aggregate(cohort, state, bound)
    except (ArithmeticError, ValueError):
        return None


def settle_stream(
    round: int,
    rounds: int,
    model: Model,
    method: Method,
    state: State,
    updates: Iterable[Update],
    clients: Sequence[str],
    sizes: Mapping[int, int],
    gate: Gate | None = None,
    policy: Policy | None = None,
) -> Settled:
    """The same for updates that come one by one, in client order, from clients that have said their sizes before."""
    gate, policy = gate or Gate(), policy or Policy()
    if policy.limits_weights:
        raise UserError(STREAM_WEIGHTS)
    believed = policy.believed(sizes)
    counted = {client: believed[client][0] if client in believed else size for client, size in sizes.items()}
    stream = Stream(method, Cohort(round, rounds, model, (), len(clients)), counted)
    verdicts: dict[int, Verdict] = {}
    came = []
    for update in updates:
        if update.client in verdicts:  # what is in the sum stays there
            verdicts[update.client] = replace(verdicts[update.client], note="answered again, its first answer counts")
            continue
        verdict = _alone(update, model, method, sizes, gate)
        counts = _believed(update, believed)
        if not verdict.reason:
            stream.take(counts)
        verdicts[update.client] = verdict
        came.append(replace(counts, model=model))  # its own is gone with the next one
    verdicts |= compare({client: verdict for client, verdict in verdicts.items() if not verdict.reason}, gate)
    aggregate = stream.aggregate(state) if stream.updates else None
    verdicts = _noted(verdicts, _remarks(sizes, believed, stream.updates, aggregate))
    ledger = _ledger(round, clients, sizes, came, verdicts, aggregate)
    return _settled(aggregate, Settled(model, state, ledger, (), math.nan), stream.updates, clients)


def _alone(update: Update, model: Model, method: Method, sizes: Mapping[int, int], gate: Gate) -> Verdict:
    """What can be said of an update before the others are there."""
    if update.client not in sizes:
        return Verdict("not a client of this federation, or not asked", math.nan)
    verdict = inspect(update, model, method.sends, gate.max_size)
    if not verdict.reason and update.size != sizes[update.client]:
        return Verdict(f"size {update.size} where {sizes[update.client]} was announced", math.nan)
    return verdict


def _believed(update: Update, believed: Mapping[int, tuple[float, str]]) -> Update:
    """With the size that it counts with."""
    return replace(update, size=believed[update.client][0]) if update.client in believed else update


def _remarks(
    sizes: Mapping[int, float],
    believed: Mapping[int, tuple[float, str]],
    accepted: Sequence[Update],
    aggregate: Aggregate | None,
) -> dict[int, list[str]]:
    """By client, what the policy changed about its size and its weight."""
    limited = aggregate.weights.limited if aggregate is not None else None
    found: dict[int, list[str]] = {}
    for place, update in enumerate(accepted):
        client = update.client
        if client in believed:
            size, setting = believed[client]
            found.setdefault(client, []).append(f"says {sizes[client]} images, {size} count (policy.{setting})")
        if limited is not None and (said := remark(limited, place)):
            found.setdefault(client, []).append(said)
    return found


def _noted(verdicts: dict[int, Verdict], remarks: Mapping[int, list[str]]) -> dict[int, Verdict]:
    """The verdicts with these remarks behind the gate's own."""
    if not remarks:
        return verdicts
    notes = {c: "; ".join(filter(None, [verdicts[c].note, *said])) for c, said in remarks.items()}
    return {c: replace(verdict, note=notes.get(c, verdict.note)) for c, verdict in verdicts.items()}


def _settled(
    aggregate: Aggregate | None, before: Settled, accepted: Sequence[Update], clients: Sequence[str]
) -> Settled:
    """What has changed, if anyone was accepted."""
    if aggregate is None:
        return before
    pieces = _pieces(before.ledger[0].round, [clients[update.client] for update in accepted], aggregate)
    loss = float(np.mean([update.metrics["loss"] for update in accepted]))
    return Settled(aggregate.model, aggregate.state, before.ledger, pieces, loss)


def _told(updates: Iterable[Update], round: int, on_update: Callable[[int, Update], None] | None) -> Iterator[Update]:
    for update in updates:
        if on_update is not None:
            on_update(round, update)
        yield update


def _ledger(
    round: int,
    clients: Sequence[str],
    asked: Collection[int],
    updates: Sequence[Update],
    verdicts: Mapping[int, Verdict],
    aggregate: Aggregate | None,
) -> tuple[LedgerEntry, ...]:
    """A line for every client of the federation, counted or not, and for whoever else answered."""
    came = {update.client: update for update in updates}
    shares = _shares([client for client in came if not verdicts[client].reason], verdicts, aggregate)
    names = dict(enumerate(clients))
    names |= {client: f"stranger {client}" for client in came if client not in names}
    lines = []
    for client, name in names.items():
        if client in came:
            update, status = came[client], verdicts[client].status
            lines.append(LedgerEntry(round, name, update.size, update.steps, **shares.get(client, {}), status=status))
        else:
            lines.append(LedgerEntry(round, name, 0, 0, status="missing" if client in asked else "not asked"))
    return tuple(lines)


def _shares(
    counted: Sequence[int], verdicts: Mapping[int, Verdict], aggregate: Aggregate | None
) -> dict[int, dict[str, Any]]:
    """Weight, influence and the parts of the weight, by client."""
    if aggregate is None:
        return {}
    lengths = np.abs(aggregate.coefficients) * [verdicts[client].distance for client in counted]
    total = lengths.sum()
    columns: dict[str, Any] = {
        "weight": aggregate.coefficients,
        "influence": lengths / total if total > 0 else math.nan,
    }
    columns |= {name: part for name, part in aggregate.weights.parts.items() if part is not None}
    if (limited := aggregate.weights.limited) is not None:
        columns |= {"proposed": limited.before, "allowed": limited.after, "clause": np.array(limited.clauses, object)}
    lists = {name: np.broadcast_to(column, len(counted)).tolist() for name, column in columns.items()}
    return {client: {name: lists[name][place] for name in lists} for place, client in enumerate(counted)}


def _pieces(round: int, counted: Sequence[str], aggregate: Aggregate | None) -> tuple[PieceEntry, ...]:
    """A line for every client and piece."""
    return tuple(
        _of_piece(PieceEntry(round, client, piece.name), piece, place)
        for piece in (aggregate.weights.pieces if aggregate else ())
        for place, client in enumerate(counted)
    )


def _of_piece(entry: PieceEntry, piece: Piece, place: int) -> PieceEntry:
    columns: dict[str, Any] = {name: float(column[place]) for name, column in piece.parts.items()}
    columns["weight"] = float(piece.values[place])
    if (limited := piece.limited) is not None:
        columns |= {"proposed": float(limited.before[place]), "clause": limited.clauses[place]}
    return replace(entry, **columns)

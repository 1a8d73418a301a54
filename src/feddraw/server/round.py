"""One round at the server: judge the updates, weigh them, step, and write down who counted how much."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from feddraw.core import Aggregate, Cohort, Method, Model, Proxy, State, Update
from feddraw.errors import UserError
from feddraw.server.gate import Gate, Verdict, compare, inspect, judge, look_at_all
from feddraw.server.ledger import LedgerEntry, PieceEntry, ledger_of, pieces_of, remarks_of, with_remarks
from feddraw.server.policy import Bound, Policy
from feddraw.server.streaming import Stream

STREAM_WEIGHTS = (
    "a stream adds an update before all weights are known, so a policy cannot limit them: set stream = false, or "
    "leave only policy.max_size and policy.max_size_times"
)


@dataclass(frozen=True, eq=False)
class RoundOutcome:
    """What a server makes of a round's updates."""

    model: Model  # the one that is sent next
    state: State
    ledger: tuple[LedgerEntry, ...]
    pieces: tuple[PieceEntry, ...]
    loss: float


def aggregate_round(
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
) -> RoundOutcome:
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
    aggregate = _aggregate_before_judging(method, cohort, state, bound)
    accepted, verdicts = judge(cohort, looked, gate)
    if accepted != whole or aggregate is None:
        aggregate = method.aggregate(replace(cohort, updates=accepted), state, bound) if accepted else None
    verdicts = with_remarks(verdicts, remarks_of(sizes, believed, accepted, aggregate))
    ledger = ledger_of(round, clients, range(len(clients)) if asked is None else asked, updates, verdicts, aggregate)
    return _outcome(aggregate, RoundOutcome(model, state, ledger, (), math.nan), accepted, clients)


def _aggregate_before_judging(method: Method, cohort: Cohort, state: State, bound: Bound | None) -> Aggregate | None:
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


def aggregate_stream(
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
) -> RoundOutcome:
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
    verdicts = with_remarks(verdicts, remarks_of(sizes, believed, stream.updates, aggregate))
    ledger = ledger_of(round, clients, sizes, came, verdicts, aggregate)
    return _outcome(aggregate, RoundOutcome(model, state, ledger, (), math.nan), stream.updates, clients)


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


def _outcome(
    aggregate: Aggregate | None, before: RoundOutcome, accepted: Sequence[Update], clients: Sequence[str]
) -> RoundOutcome:
    """What has changed, if anyone was accepted."""
    if aggregate is None:
        return before
    pieces = pieces_of(before.ledger[0].round, [clients[update.client] for update in accepted], aggregate)
    loss = float(np.mean([update.metrics["loss"] for update in accepted]))
    return RoundOutcome(aggregate.model, aggregate.state, before.ledger, pieces, loss)

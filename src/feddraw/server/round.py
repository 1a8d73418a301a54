"""One round at the server: check the updates, weigh them, step, and write down who counted how
much.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from feddraw.core import (
    Aggregate,
    Bound,
    Cohort,
    Column,
    Method,
    Model,
    Proxy,
    State,
    SummedCohort,
    Update,
)
from feddraw.errors import UserError
from feddraw.server.gate import Gate, GateVerdict, accept_by_distance, check_each_update
from feddraw.server.ledger import LedgerEntry, PieceEntry, ledger_of, ledger_remarks, piece_entries
from feddraw.server.partial_labels import bound_then_divide, with_unweighted_rows
from feddraw.server.policy import Policy, with_limited_size


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundRecord:
    """What is written down about a round."""

    round: int
    ledger: tuple[LedgerEntry, ...]
    loss: float = math.nan  # mean training loss of the clients that counted
    seconds: Mapping[str, float] = field(default_factory=dict)  # training and aggregation
    client_seconds: Mapping[str, float] = field(
        default_factory=dict, repr=False
    )  # how long each worked, if it says so
    pieces: tuple[PieceEntry, ...] = ()  # where a rule has weights for some parameters only
    # what the strategy reports to Flower: means of the clients' own metrics, columns of the ledger
    reported: Mapping[str, Any] = field(default_factory=dict)

    @property
    def diverged(self) -> str:
        """How the updates show that the run has diverged; empty if they do not."""
        answers = [
            entry.status for entry in self.ledger if entry.status not in ("missing", "not asked")
        ]
        if answers and all(
            status.startswith("refused") and "finite" in status for status in answers
        ):
            return "every update was refused, because none was finite"
        return ""

    @property
    def weights(self) -> dict[str, float]:
        """Client to weight, for those that counted."""
        return {entry.client: entry.weight for entry in self.ledger if entry.counted}


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundResult(RoundRecord):
    """What a round gave.

    The model is the one to evaluate; `next_model` is the one that is sent next.
    """

    model: Model
    next_model: Model
    state: State


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
) -> RoundResult:
    """Check the updates, weigh and step. Where none is accepted, the model stays as it was."""
    if method.weighting.proxy and proxy is None:
        raise UserError("this weighting needs labelled images at the server")
    gate, policy = gate or Gate(), policy or Policy()
    bound = bound_then_divide(policy.bound(clients, method.server))
    updates = sorted(updates, key=lambda update: update.client)  # never the order of arrival
    checked = check_each_update(updates, model, method.sends, len(clients), gate)
    sizes = {update.client: update.size for update in updates if not checked[update.client].reason}
    limited = policy.limited_sizes(sizes)
    updates = [with_limited_size(update, limited) for update in updates]
    sound = [update for update in updates if not checked[update.client].reason]
    cohort = Cohort(round, rounds, model, sound, len(clients), proxy)
    early = _sum_before_accepting(method, cohort, state, bound)
    summed, distances, weighed = early or (None, cohort.distances, state)
    accepted, verdicts = accept_by_distance(cohort, distances, checked, gate)
    if summed is not None and accepted == sound:
        aggregate: Aggregate | None = method.step(summed, summed.weights, weighed)
    else:
        cohort = replace(cohort, updates=accepted)
        aggregate = method.aggregate(cohort, state, bound) if accepted else None
    if aggregate is not None:
        aggregate = with_unweighted_rows(aggregate, cohort, method, state)
    everyone = range(len(clients)) if asked is None else asked
    return round_result(
        method, cohort, state, aggregate, clients, everyone, updates, verdicts, sizes, limited
    )


def _sum_before_accepting(
    method: Method, cohort: Cohort, state: State, bound: Bound | None
) -> tuple[SummedCohort, Column, State] | None:
    """One pass over all updates for the sum and the distances; the sum holds if the gate then
    refuses nobody.

    The state is that after weighing. Only for rules that weigh each client by itself: there, an
    update that will be refused spoils nothing but the sum.
    """
    if not (method.streams and cohort.updates):
        return None
    try:
        with np.errstate(all="ignore"):
            weights, weighting = method.weigh(cohort, state, bound)
            return *cohort.summed(weights), state | {"weighting": weighting}
    except (ArithmeticError, ValueError):
        return None


def round_result(
    method: Method,
    cohort: Cohort,
    state: State,
    aggregate: Aggregate | None,
    clients: Sequence[str],
    asked: Collection[int],
    received: Sequence[Update],
    verdicts: Mapping[int, GateVerdict],
    sizes: Mapping[int, float],  # that clients say they have
    limited: Mapping[
        int, tuple[float, str]
    ],  # those that the policy limits (`Policy.limited_sizes`)
) -> RoundResult:
    """The new model, or the one that was sent where no update was accepted, and who counted how
    much.
    """
    accepted = [update for update in received if not verdicts[update.client].reason]
    verdicts = ledger_remarks(verdicts, sizes, limited, accepted, aggregate)
    ledger = ledger_of(cohort.round, clients, asked, received, verdicts, aggregate)
    model, loss = cohort.model, math.nan
    if aggregate is not None:
        model, state = aggregate.model, aggregate.state
        loss = float(np.mean([update.metrics["loss"] for update in accepted]))
    pieces = piece_entries(cohort.round, [clients[update.client] for update in accepted], aggregate)
    shown = method.shown(model, state)
    return RoundResult(
        round=cohort.round,
        ledger=ledger,
        loss=loss,
        pieces=pieces,
        model=shown,
        next_model=model,
        state=state,
    )

"""One round at the server as values: what goes in, what was received, what comes out.

A collector (`collectors`, `secure`) takes a `Round` and the updates as they arrive, and gives a
`RoundResult`. What of it is written down is a `RoundRecord`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from feddraw.core import ClosedCohort, Cohort, Method, Model, Proxy, State, Update
from feddraw.server.aggregate import Aggregate
from feddraw.server.gate import Verdict
from feddraw.server.ledger import (
    LedgerEntry,
    PieceEntry,
    ledger_of,
    piece_entries,
    remarks,
)
from feddraw.server.policy import SizeLimit
from feddraw.server.status import RefusalCause, StatusKind


@dataclass(frozen=True, eq=False)
class Round:
    """One round of a federation, before its updates arrive."""

    number: int
    rounds: int
    sent: Model
    method: Method
    state: State  # of the method's rules, before this round
    clients: Sequence[str]  # names of all clients of the federation
    sampled: Collection[int]  # numbers of those that were to train

    def cohort(self, updates: Sequence[Update], proxy: Proxy | None = None) -> Cohort:
        """Some of its updates, as the rules see them."""
        return Cohort(
            round=self.number,
            rounds=self.rounds,
            sent=self.sent,
            updates=updates,
            population=len(self.clients),
            proxy=proxy,
        )

    def closed_cohort(self, updates: Sequence[Update]) -> ClosedCohort:
        """The clients of a sum, with updates that hold the sent model in place of their own."""
        return ClosedCohort(
            round=self.number,
            rounds=self.rounds,
            sent=self.sent,
            updates=updates,
            population=len(self.clients),
        )


@dataclass(frozen=True, eq=False)
class Intake:
    """The updates of a round and what was found about them, before they are aggregated."""

    received: Sequence[Update]  # with sizes as they count
    verdicts: Mapping[int, Verdict]  # by client
    reported_sizes: Mapping[int, float]  # that clients say they have
    size_limit: SizeLimit
    min_sites: int = 0  # fewest clients that must count for the model to move

    def accepted(self) -> list[Update]:
        return [update for update in self.received if not self.verdicts[update.client].reason]


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundRecord:
    """What is written down about a round."""

    round: int
    ledger: tuple[LedgerEntry, ...]
    loss: float = math.nan  # mean training loss of the clients that counted
    seconds: Mapping[str, float] = field(default_factory=dict)  # training and aggregation
    # How long each client worked, if it says so.
    client_seconds: Mapping[str, float] = field(default_factory=dict, repr=False)
    pieces: tuple[PieceEntry, ...] = ()  # where a rule has weights for some parameters only
    # what the strategy reports to Flower: means of the clients' own metrics, columns of the ledger
    reported: Mapping[str, Any] = field(default_factory=dict)
    # By client that was refused, what was wrong.
    refusals: Mapping[str, RefusalCause] = field(default_factory=dict)

    @property
    def diverged(self) -> str:
        """How the updates, or what was made of them, show that the run has diverged, and what to
        try; empty if they do not.
        """
        answers = [entry.client for entry in self.ledger if not entry.kind.sent_nothing]
        causes = {self.refusals.get(client) for client in answers}
        if causes == {RefusalCause.NOT_FINITE_UPDATE}:
            return "every update was refused, because none was finite; try a lower training.lr"
        if RefusalCause.NOT_FINITE_SUM in causes:
            return (
                "every update that was let in was finite, but the model that the server made"
                " of them was not; look at the method's weights, its server rule and their settings"
            )
        return ""

    @property
    def weights(self) -> dict[str, float]:
        """Client to weight, for those that counted."""
        return {entry.client: entry.weight for entry in self.ledger if entry.weighted}


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundResult(RoundRecord):
    """What a round gave. The model is the one to evaluate; `next_model` is sent next."""

    model: Model
    next_model: Model
    state: State


class Collector(Protocol):
    """One way from the updates of a round to a new model."""

    @property
    def in_turn(self) -> bool:
        """Whether it needs the updates in client order and keeps none of them, so that the memory
        of one may be used for the next.
        """

    def __call__(self, round: Round, arriving: Iterable[Update]) -> RoundResult: ...


def close_round(round: Round, intake: Intake, aggregate: Aggregate | None) -> RoundResult:
    """The new model and the ledger; where nothing was aggregated, or of too few clients, the model
    stays as it was.
    """
    if aggregate is not None and len(intake.accepted()) < intake.min_sites:
        intake = _unused_for_their_number(intake)
        aggregate = None
    if aggregate is not None and not aggregate.finite:
        intake = _refused_for_the_sum(intake)
        aggregate = None
    accepted = intake.accepted()
    verdicts = remarks(
        intake.verdicts, intake.reported_sizes, intake.size_limit, accepted, aggregate
    )
    ledger = ledger_of(
        round.number, round.clients, round.sampled, intake.received, verdicts, aggregate
    )
    names = [round.clients[update.client] for update in accepted]
    next_model = round.sent
    state = round.state
    loss = math.nan
    if aggregate is not None:
        next_model = aggregate.model
        state = aggregate.state
        loss = float(np.mean([update.metrics["loss"] for update in accepted]))
    return RoundResult(
        round=round.number,
        ledger=ledger,
        loss=loss,
        pieces=piece_entries(round.number, names, aggregate),
        refusals=_refusals(round, intake),
        model=round.method.shown(next_model, state),
        next_model=next_model,
        state=state,
    )


def _refusals(round: Round, intake: Intake) -> dict[str, RefusalCause]:
    """By name, what was wrong with clients of the federation that were refused."""
    return {
        name: verdict.cause
        for client, name in enumerate(round.clients)
        if (verdict := intake.verdicts.get(client)) is not None
        and verdict.reason
        and verdict.kind is StatusKind.REFUSED
    }


def _unused_for_their_number(intake: Intake) -> Intake:
    """Nobody counts in a round of too few, though nothing is wrong with what they sent."""
    accepted = intake.accepted()
    number = f"only {len(accepted)} client{'s' if len(accepted) > 1 else ''} could count"
    reason = f"{number}, and policy.min_sites asks for {intake.min_sites}"
    verdicts = dict(intake.verdicts)
    for update in accepted:
        verdicts[update.client] = replace(
            verdicts[update.client], reason=reason, kind=StatusKind.UNUSED
        )
    return replace(intake, verdicts=verdicts)


def _refused_for_the_sum(intake: Intake) -> Intake:
    """Nobody counts in a round whose model would not be finite; the likely culprit is named."""
    accepted = intake.accepted()
    longest = max(accepted, key=lambda update: intake.verdicts[update.client].distance)
    verdicts = dict(intake.verdicts)
    for update in accepted:
        reason = "the model of this round would not be finite"
        if update is longest:
            reason = f"{reason}; it moved farthest of all"
        verdicts[update.client] = replace(
            verdicts[update.client], reason=reason, cause=RefusalCause.NOT_FINITE_SUM
        )
    return replace(intake, verdicts=verdicts)

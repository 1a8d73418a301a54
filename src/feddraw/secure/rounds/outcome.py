"""How a secure round of training ended, and what the server makes of it: the new model, where the
opened sum gives one, and the ledger.

Where there is no sum, or what clients said in clear does not fit it, nobody counts, and the model
stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from feddraw.core import Update
from feddraw.errors import RuleMistake, UserError
from feddraw.secure.rounds.driver import Opened, SecureRound
from feddraw.secure.rounds.messages import Keys
from feddraw.secure.rounds.secure_step import (
    SecureStep,
    UntrueSum,
    step_of_sum,
    updates_in_clear,
)
from feddraw.secure.rounds.terms import Party, Terms
from feddraw.secure.rounds.training_rules import TrainingRules
from feddraw.secure.sums.session import SecureSumFailed
from feddraw.server.gate import Verdict
from feddraw.server.ledger import with_hidden
from feddraw.server.round import Intake, Round, RoundResult, close_round
from feddraw.server.status import RefusalCause, StatusKind
from feddraw.text import one_line


@dataclass(frozen=True, eq=False)
class SecureOutcome:
    """How a secure round of training ended."""

    terms: Terms
    parties: Sequence[Party]  # all that said their size
    opened: Opened | None  # None: there is no sum
    left_out: Mapping[str, str]  # by name, why sites are not in it; empty: they fell silent
    failure: str = ""  # why there is no sum

    def reasons(self) -> dict[str, str]:
        """By name, why clients that said their size are not in the sum."""
        summed = set(self.opened.survivors) if self.opened else set()
        reasons = {}
        for party in self.parties:
            reason = self.left_out.get(party.name) or self.failure
            if party.name not in summed and reason:
                reasons[party.name] = reason
        return reasons


def outcome_of(
    round: SecureRound, members: Sequence[str], keys: Mapping[str, Keys], attempt: int = 0
) -> SecureOutcome:
    """Drive a secure round to its end, whatever that is."""
    opened, failure = None, ""
    try:
        opened = round.run(members, keys, attempt)
    except RuleMistake:
        raise
    except (SecureSumFailed, UserError) as error:
        failure = one_line(error, 200)
    return SecureOutcome(round.terms, round.parties, opened, dict(round.left_out), failure)


def result_of_outcome(
    round: Round, rules: TrainingRules, outcome: SecureOutcome, numbers: Mapping[str, int]
) -> RoundResult:
    """The new model from the opened sum (its memory is used), and the ledger.

    `numbers` are the clients' by the names under which they sign. Without a sum, or where it is not
    true, the model stays as it was.
    """
    opened = outcome.opened
    step: SecureStep | None = None
    on_summed = Verdict("")
    if opened is not None:
        try:
            step = step_of_sum(round, rules, opened, numbers)
        except UntrueSum as error:
            on_summed = Verdict(str(error), cause=error.cause)
    in_sum = [] if opened is None else updates_in_clear(round, opened, numbers)
    intake = _intake(round, outcome, numbers, in_sum, on_summed)
    result = close_round(round, intake, step.aggregate if step else None)
    return _with_hidden_columns(result, step) if step and result.weights else result


def _intake(
    round: Round,
    outcome: SecureOutcome,
    numbers: Mapping[str, int],
    in_sum: Sequence[Update],
    on_summed: Verdict,
) -> Intake:
    """All clients that said their size: those in the sum, all with one verdict, and those that are
    left out, each with the reason.
    """
    reported = {numbers[party.name]: party.size for party in outcome.parties}
    limit = outcome.terms.limits.size_limit(reported.values())
    received = list(in_sum)
    verdicts = {update.client: on_summed for update in in_sum}
    for name, reason in outcome.reasons().items():
        client = numbers[name]
        size = limit.counted(reported[client])
        received.append(Update(client, round.sent, size, 0, {"loss": math.nan}))
        if outcome.left_out.get(name):
            verdicts[client] = Verdict(reason, cause=RefusalCause.of_words(reason))
        else:  # the sum failed because of others
            verdicts[client] = Verdict(reason, kind=StatusKind.UNUSED)
    received.sort(key=lambda update: update.client)
    return Intake(received, verdicts, reported, limit, outcome.terms.limits.min_sites)


def _with_hidden_columns(result: RoundResult, step: SecureStep) -> RoundResult:
    """The result without what only each client knows for itself."""
    ledger = tuple(
        with_hidden(entry, step.hidden) if entry.weighted else entry for entry in result.ledger
    )
    pieces = result.pieces
    if "weight" in step.hidden:
        pieces = tuple(with_hidden(entry, ["weight"]) for entry in pieces)
    return replace(result, ledger=ledger, pieces=pieces, loss=step.loss)

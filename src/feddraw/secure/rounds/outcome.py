"""What the server makes of a secure round of training: checks of what sites say, and the new model
from the opened sum.

It sees the sum of all words, exactly, and of each client its size, steps and labelled findings, and
its own weight where that says no more than these, or where all have agreed to say it. Where these
do not fit each other nobody counts, and the model stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from feddraw.core import (
    AfterFirstSum,
    Cohort,
    Column,
    Factored,
    Layout,
    LimitedWeights,
    Method,
    Model,
    Parts,
    State,
    Update,
    Vector,
    Weights,
)
from feddraw.errors import UserError
from feddraw.secure.rounds import rules_of_method
from feddraw.secure.rounds.driver import Opened, SecureRound
from feddraw.secure.rounds.messages import Joined, Keys
from feddraw.secure.rounds.opened_sums import OpenedSums
from feddraw.secure.rounds.round_weights import (
    WEIGHT_ROUNDING,
    announce_weights_under_policy,
    proposals_under_policy,
    weights_from_own,
    weights_too_small,
)
from feddraw.secure.rounds.terms import Announcement, Numbers, Party, Statement, Terms
from feddraw.secure.rounds.word_layout import WordLayout
from feddraw.secure.sums.fixed_point import FRACTION_BITS, Words, from_fixed_point
from feddraw.secure.sums.session import FEWEST_SUMMED, SecureSumFailed
from feddraw.server.aggregate import Aggregate
from feddraw.server.collectors import stepped
from feddraw.server.gate import Gate, Verdict
from feddraw.server.ledger import HIDDEN
from feddraw.server.policy import size_as_int_if_whole
from feddraw.server.round import Intake, Round, RoundResult, close_round
from feddraw.text import one_line

SLACK = 1e-3  # rounding of the lengths that clients add up
WIDEST_SIZES = 2.0**40  # largest size over smallest, beyond which no rule is asked about them
COUNTER = "num_batches_tracked"  # of batch norm: one more with every step
TINY_OR_HUGE = "its size is too far from the others' for one secure sum with them"


class UntrueSum(UserError):
    """What clients said in clear does not fit the sum: nobody counts."""


@dataclass(eq=False)
class TrainingRules:
    """What the driver must know of a round of training (`driver.Rules`)."""

    method: Method
    gate: Gate
    layout: Layout
    state: State  # of the method's rules; the first of two sums changes that of the weighting
    parts: Parts = field(default_factory=dict)  # for the ledger, from the first of two sums

    def party(self, name: str, joined: Joined) -> Party:
        """What a site says of itself."""
        party = Party.of(name, joined.size, joined.labelled)
        party.check("train")
        if party.size > self.gate.max_size:
            raise UserError(f"more images than gate.max_size = {self.gate.max_size:,}")
        outputs = self.layout.outputs
        if party.labelled is not None and len(party.labelled) != outputs:
            raise UserError(
                f"{len(party.labelled)} labelled findings where the model has {outputs}"
            )
        if party.labelled is not None and not any(party.labelled):
            raise UserError("it labels none of the findings")
        return replace(party, size=size_as_int_if_whole(party.size))

    def misfits(self, announcement: Announcement) -> dict[str, str]:
        """Those whose findings do not fit the method, and those whose size, farthest from the
        median, would make every site's check fail.
        """
        left_out: dict[str, str] = {}
        if why := rules_of_method.why_all_labels_are_needed(self.method):
            for party in announcement.parties:
                if not all(party.labelled or ()):
                    left_out[party.name] = why
        for name in rules_of_method.labelling_unlike_most(self.method, announcement):
            left_out.setdefault(name, rules_of_method.SAME_LABELS)
        parties = [party for party in announcement.parties if party.name not in left_out]
        while len(parties) >= FEWEST_SUMMED and not self._fit(announcement, parties):
            sizes = np.log([party.size for party in parties])
            farthest = int(np.abs(sizes - np.median(sizes)).argmax())
            left_out[parties.pop(farthest).name] = TINY_OR_HUGE
        # Where nobody is left to fit, the settings are to blame, and every site says so.
        return left_out if len(parties) >= FEWEST_SUMMED else {}

    def _fit(self, announcement: Announcement, parties: Sequence[Party]) -> bool:
        among = Announcement(announcement.terms, tuple(parties))
        if among.sizes.max() > WIDEST_SIZES * among.sizes.min():
            return False
        return not rules_of_method.why_weights_do_not_fit(self.method, among.facts)

    def conclude(
        self, announcement: Announcement, total: Words, summed: Sequence[str]
    ) -> Announcement:
        """With what comes of the first of two sums, which is over some clients."""
        rule = rules_of_method.weighting_of(self.method)
        assert isinstance(rule, AfterFirstSum)  # by the terms' sums
        places = [announcement.place(name) for name in summed]
        told, self.parts, weighting = rule.conclude(
            from_fixed_point(total), announcement.facts, places, self.state["weighting"]
        )
        self.state = self.state | {"weighting": weighting}
        return replace(announcement, told=tuple(told.tolist()))

    def check_statement(
        self, announcement: Announcement, name: str, statement: Statement | None
    ) -> None:
        """Refuse what a client says if its size and the method do not allow it."""
        if statement is None:
            raise UserError("it does not say how it weighs itself")
        statement.check()
        facts = announcement.facts
        place = announcement.place(name)
        outputs = rules_of_method.outputs_with_own_weight(self.method, self.layout, facts)
        own = statement.own
        if not rules_of_method.weights_are_said(self.method, announcement):
            if own:
                raise UserError("it says its weight, which stays hidden in this round")
            return
        if len(own) != 1 + len(outputs):
            raise UserError(f"{len(own)} weights where {1 + len(outputs)} are needed")
        ranges = rules_of_method.ranges_of_client(self.method, own, facts, place, outputs)
        for weight, (low, high) in zip(own, ranges, strict=True):
            if not low - WEIGHT_ROUNDING <= weight <= high + WEIGHT_ROUNDING:
                raise UserError(
                    f"it weighs itself {weight:.6g}, and its size allows from {low:.6g} to"
                    f" {high:.6g}"
                )
        proposed = announcement.proposed.get(name)
        if proposed is not None and proposed != own:
            raise UserError("it proposed another weight before")

    def limit(self, announcement: Announcement, proposals: Mapping[str, Statement]) -> Announcement:
        """With the weights that the policy makes of those that sites propose."""
        return announce_weights_under_policy(self.method, announcement, self.layout, proposals)


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
    round: SecureRound, asked: Sequence[str], keys: Mapping[str, Keys], attempt: int = 0
) -> SecureOutcome:
    """Drive a secure round to its end, whatever that is."""
    opened, failure = None, ""
    try:
        opened = round.run(asked, keys, attempt)
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
    step: _Step | None = None
    failure = outcome.failure
    if outcome.opened is not None:
        try:
            step = _Step.of(round, rules, outcome.opened, numbers)
        except UntrueSum as error:
            failure = str(error)
    reported = {numbers[party.name]: party.size for party in outcome.parties}
    limit = outcome.terms.limits.size_limit(reported.values())
    received = _updates_in_clear(round, outcome.opened, numbers)
    verdicts = {update.client: Verdict("" if step else failure) for update in received}
    for name, reason in outcome.reasons().items():
        client = numbers[name]
        size = limit.counted(reported[client])
        received.append(Update(client, round.sent, size, 0, {"loss": math.nan}))
        verdicts[client] = Verdict(reason)
    received.sort(key=lambda update: update.client)
    intake = Intake(received, verdicts, reported, limit, outcome.terms.limits.min_sites)
    result = close_round(round, intake, step.aggregate if step else None)
    if step is None or not result.weights:
        return result
    hidden: dict[str, Any] = dict.fromkeys(step.hidden, HIDDEN)
    ledger = tuple(replace(entry, **hidden) if entry.weighted else entry for entry in result.ledger)
    pieces = result.pieces
    if "weight" in step.hidden:
        pieces = tuple(replace(entry, weight=HIDDEN) for entry in pieces)
    return replace(result, ledger=ledger, pieces=pieces, loss=step.loss)


def _updates_in_clear(
    round: Round, opened: Opened | None, numbers: Mapping[str, int]
) -> list[Update]:
    """What clients in the sum said in clear, with the sent model in place of their own."""
    if opened is None:
        return []
    facts = opened.announcement.facts
    updates = []
    for name in sorted(opened.survivors, key=lambda name: numbers[name]):
        place = opened.announcement.place(name)
        size = size_as_int_if_whole(float(facts.sizes[place]))
        labelled = None if facts.labelled is None else facts.labelled[place]
        steps = opened.statements[name].steps
        metrics = {"loss": math.nan}
        updates.append(Update(numbers[name], round.sent, size, steps, metrics, {}, labelled))
    return updates


@dataclass(frozen=True, eq=False)
class _Step:
    """The server's step from an opened sum."""

    aggregate: Aggregate
    loss: float  # mean training loss of the clients in the sum
    hidden: tuple[str, ...]  # columns of the ledger that only each client knows for itself

    @staticmethod
    def of(round: Round, rules: TrainingRules, opened: Opened, numbers: Mapping[str, int]) -> _Step:
        names = sorted(opened.survivors, key=lambda name: numbers[name])
        cohort = round.closed_cohort(_updates_in_clear(round, opened, numbers))
        reading = _Reading(rules, opened, cohort, names)
        return _Step(reading.aggregate(), reading.mean_loss, reading.hidden)


class _Reading:
    """The words of one opened sum, read by what was said about them."""

    def __init__(
        self, rules: TrainingRules, opened: Opened, cohort: Cohort, names: Sequence[str]
    ) -> None:
        self._rules = rules
        self._opened = opened
        self._cohort = cohort
        self._names = names
        self._form = WordLayout.of(rules.method, cohort.sent.layout, opened.announcement.facts)
        if opened.words.shape != (self._form.length,):
            raise UntrueSum(
                f"a sum of {len(opened.words):,} words where {self._form.length:,} are needed"
            )
        self._spans = self._form.spans()
        self._said = rules_of_method.weights_are_said(rules.method, opened.announcement)
        self._own = self._weights_summed()
        self._totals = self._checked_totals()
        self._values = from_fixed_point(opened.words, in_place=True)
        self._check_length()

    @property
    def mean_loss(self) -> float:
        """Of the clients in the sum."""
        return float(self._values[self._spans["loss"]][0]) / len(self._names)

    @property
    def hidden(self) -> tuple[str, ...]:
        """How long each client's move is stays hidden, and with it how much each moved the model;
        so does its weight, and what would explain it, where it is not said.
        """
        if self._said:
            return ("influence",)
        parts = {name: part for name, part in self._known_parts().items() if part is not None}
        unknown = [name for name, part in parts.items() if np.isnan(part).all()]
        return ("influence", "weight", *unknown)

    def aggregate(self) -> Aggregate:
        """The server rule's step."""
        sent = self._cohort.sent
        server = rules_of_method.server_of(self._rules.method)
        weights = self._weights()
        sums = self._sums(weights)
        change = self._values[self._spans["buffers"]] / self._totals[0]
        aggregate = stepped(
            server,
            sums,
            self._rules.state,
            buffers=_buffers_after(sent, change),
            counters=self._counters(),
        )
        if not aggregate.finite:
            raise UntrueSum("the model of this round would not be finite")
        return aggregate

    # ------------------------------------------------------------------------------------ the sums

    def _sums(self, weights: Weights) -> OpenedSums:
        """The means of the opened sum, as a server rule takes them."""
        sent = self._cohort.sent
        moves = self._values[self._spans["params"]]
        moves /= self._totals[0]
        rows = list(zip(self._form.outputs, self._totals[1:], strict=True))
        for output, total in rows:
            for row in sent.layout.rows_of(output):
                moves[row] *= self._totals[0] / total if total else 0.0
        server = rules_of_method.server_of(self._rules.method)
        if isinstance(server, Factored):
            scale = self._scale_by_term(server)
            coefficients = scale * self._mean_of_word("factor") * weights.values
            mean_move = None
        else:
            scale = server.scale
            coefficients = scale * weights.values
            mean_move = moves
        total = sent.params + scale * moves
        return OpenedSums(
            cohort=self._cohort,
            weights=weights,
            coefficients=coefficients,
            total=total.astype(sent.params.dtype),
            mean_move=mean_move,
        )

    def _scale_by_term(self, server: Factored) -> float:
        """What the moves are multiplied with: from the mean term, which no honest client takes to
        zero or below.
        """
        mean_term = self._mean_of_word("term")
        if not (mean_term > 0 and math.isfinite(server.scale_by(mean_term))):
            raise UntrueSum("the clients' terms do not give a step")
        return server.scale_by(mean_term)

    def _mean_of_word(self, name: str) -> float:
        """Of a number that each client adds times its weight."""
        return float(self._values[self._spans[name]][0] / self._totals[0])

    def _counters(self) -> Vector:
        """As after the steps that were said: the largest, as in every other engine. As sent where
        no client says any.
        """
        sent = self._cohort.sent
        said = [update.steps for update in self._cohort.updates if update.steps is not None]
        steps = max(said, default=0)
        counters = sent.counters.copy()
        for entry in sent.layout.entries:
            if entry.kind == "counter" and entry.name.endswith(COUNTER):
                counters[entry.span] += steps
        return counters

    # ------------------------------------------------------------------------------------- weights

    def _weights_summed(self) -> list[Numbers]:
        """What each client in the sum multiplied with. Where weights are hidden, equal ones stand
        for them: only their sum is used.
        """
        announcement = self._opened.announcement
        if not self._said:
            return [self._equal_weights(announcement.place(name)) for name in self._names]
        if announcement.terms.limits.limits_weights:
            return [announcement.weights[name] for name in self._names]
        return [self._opened.statements[name].own for name in self._names]

    def _equal_weights(self, place: int) -> Numbers:
        """One for the whole model, and for each output that the client at this place labels."""
        labelled = self._opened.announcement.facts.labelled
        rows = [labelled is None or bool(labelled[place, output]) for output in self._form.outputs]
        return (1.0, *map(float, rows))

    def _checked_totals(self) -> Column:
        """By column, the sum of the weights, which must be those that were said, or where they are
        hidden what sizes and method allow.
        """
        words = self._opened.words[self._spans["weights"]]
        totals = from_fixed_point(words)
        if self._said:
            self._check_stated(words)
        else:
            self._check_range(totals)
        if weights_too_small(totals, len(self._own)):
            raise UntrueSum(
                f"the clients' weights are too small for a secure sum: {totals.min():.2g} in all"
            )
        return totals

    def _check_stated(self, words: Words) -> None:
        """The sums of the weights are exactly those of the weights that were said."""
        stated = [0] * self._form.columns
        for row in self._own:
            for column, weight in enumerate(row):
                stated[column] += round(math.ldexp(weight, FRACTION_BITS))
        if [int(word) for word in words] != [number % 2**64 for number in stated]:
            raise UntrueSum("the weights in the sum are not those that the clients announced")

    def _check_range(self, totals: Column) -> None:
        """The sums of hidden weights are not more or less than all clients together can have."""
        announcement = self._opened.announcement
        ranges = [
            rules_of_method.ranges_of_client(
                self._rules.method, (), announcement.facts, place, self._form.outputs
            )
            for place in map(announcement.place, self._names)
        ]
        lowest, highest = np.sum(ranges, axis=0).T
        rounding = len(self._names) * WEIGHT_ROUNDING
        if (totals < lowest - rounding).any() or (totals > highest + rounding).any():
            raise UntrueSum("the weights in the sum are not such as the clients' sizes allow")

    def _weights(self) -> Weights:
        """The weights of those in the sum, with what explains them."""
        layout = self._cohort.sent.layout
        weights = weights_from_own(self._own, layout, self._form.outputs)
        parts = {**self._known_parts(), **self._rules.parts}
        return replace(weights, parts=parts, limited=self._limited())

    def _known_parts(self) -> Parts:
        """What explains the weights, as far as it follows from what is known; else not a number."""
        announcement = self._opened.announcement
        places = [announcement.place(name) for name in self._names]
        rule = rules_of_method.weighting_of(self._rules.method)
        own = np.full(len(self._names), np.nan)
        if self._said:
            own[:] = [self._opened.statements[name].own[0] for name in self._names]
        return rule.parts_of(own, announcement.facts, places)

    def _limited(self) -> LimitedWeights | None:
        """What the policy changed for those in the sum."""
        announcement = self._opened.announcement
        if not announcement.terms.limits.limits_weights:
            return None
        layout = self._cohort.sent.layout
        weights, names = proposals_under_policy(self._rules.method, announcement, layout)
        limited = weights.limited
        assert limited is not None  # a policy that limits weights says how
        rows = [names.index(name) for name in self._names]
        clauses = tuple(limited.clauses[row] for row in rows)
        return LimitedWeights(limited.before[rows], limited.after[rows], clauses)

    def _check_length(self) -> None:
        """No sum is longer than the lengths of all moves, each times its weight, together."""
        moves = self._values[self._spans["params"]]
        most = float(self._values[self._spans["length"]][0])
        rounding = (len(self._own) * math.sqrt(len(moves)) + 1) * math.ldexp(1.0, -FRACTION_BITS)
        length = math.sqrt(float(np.dot(moves, moves)))
        if not length <= (1 + SLACK) * most + rounding:
            raise UntrueSum(
                f"the sum of moves has the length {length:.3g}, and the lengths that were summed"
                f" with it allow {most:.3g}"
            )


def _buffers_after(sent: Model, change: Vector) -> Vector:
    """Batch norm's statistics after the mean change; rounding makes no variance negative."""
    buffers = (sent.buffers + change).astype(sent.buffers.dtype)
    np.maximum(buffers, 0, out=buffers, where=sent.layout.variances)
    return buffers

"""From an opened sum of a round of training to the server's step.

The server sees the sum of all words, exactly, and of each client its size, steps and labelled
findings, and its own weight where that says no more than these, or where all have agreed to say it.
What was opened is checked against what was said; then come the weights, the means under them, and
the step. Where something does not fit, nobody counts (`UntrueSum`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from feddraw.core import (
    Cohort,
    Column,
    Factored,
    Layout,
    LimitedWeights,
    Method,
    Model,
    Parts,
    Server,
    Update,
    Vector,
    Weights,
)
from feddraw.errors import UserError
from feddraw.secure.rounds import rules_of_method
from feddraw.secure.rounds.driver import Opened
from feddraw.secure.rounds.opened_sums import OpenedSums
from feddraw.secure.rounds.round_weights import (
    WEIGHT_ROUNDING,
    normalised_weights,
    proposals_under_policy,
    weights_too_small,
)
from feddraw.secure.rounds.terms import Announcement, Numbers, Statement
from feddraw.secure.rounds.training_rules import TrainingRules
from feddraw.secure.rounds.word_layout import WordLayout
from feddraw.secure.sums.fixed_point import FRACTION_BITS, Words, from_fixed_point
from feddraw.server.aggregate import Aggregate
from feddraw.server.collectors import stepped
from feddraw.server.policy import size_as_int_if_whole
from feddraw.server.round import Round
from feddraw.server.status import RefusalCause

SLACK = 1e-3  # rounding of the lengths that clients add up
COUNTER = "num_batches_tracked"  # of batch norm: one more with every step


class UntrueSum(UserError):
    """What clients said in clear does not fit the sum: nobody counts."""

    cause = RefusalCause.OTHER


class StepNotFinite(UntrueSum):
    """The server rule makes a model of the sum that is not finite."""

    cause = RefusalCause.NOT_FINITE_SUM


@dataclass(frozen=True, eq=False)
class SecureStep:
    """The server's step from an opened sum."""

    aggregate: Aggregate
    loss: float  # mean training loss of the clients in the sum
    hidden: tuple[str, ...]  # columns of the ledger that only each client knows for itself


def step_of_sum(
    round: Round, rules: TrainingRules, opened: Opened, numbers: Mapping[str, int]
) -> SecureStep:
    """The step; the memory of the opened words is used. `numbers` are the clients' by the names
    under which they sign.
    """
    clients = SummedClients.of(rules.method, round.sent.layout, opened, numbers)
    form = WordLayout.of(rules.method, round.sent.layout, opened.announcement.facts)

    check_number_of_words(opened.words, form)
    weight_words = opened.words[form.spans()["weights"]].copy()
    parts = SummedParts.of(opened.words, form)
    if clients.weights_in_clear:
        check_weights_as_stated(weight_words, clients)
    else:
        check_weights_possible(parts.weights, clients)
    check_weights_exact(parts.weights, clients)
    check_length_of_moves(parts, clients)

    weights = clients.weights(rules.parts)
    cohort = round.closed_cohort(updates_in_clear(round, opened, numbers))
    server = rules_of_method.server_of(rules.method)
    aggregate = stepped(
        server,
        means_of_sum(server, parts, weights, clients.outputs, cohort),
        rules.state,
        buffers=buffers_after(round.sent, parts.buffers / parts.weights[0]),
        counters=counters_after(cohort),
    )
    if not aggregate.finite:
        raise StepNotFinite("the model of this round would not be finite")
    return SecureStep(aggregate, parts.loss / len(clients.names), clients.hidden)


# ---------------------------------------------------------------------------------- what was opened


@dataclass(frozen=True, eq=False)
class SummedParts:
    """The parts of an opened sum as real numbers (`WordLayout` says what each client adds)."""

    moves: Vector
    buffers: Vector
    factor: float  # 0 where the server rule has no factors
    term: float  # the same
    loss: float
    length: float
    weights: Column  # of the whole model, then of each output that is weighted separately

    @staticmethod
    def of(words: Words, form: WordLayout) -> SummedParts:
        """In the memory of the words."""
        values = from_fixed_point(words, in_place=True)
        part = {name: values[span] for name, span in form.spans().items()}
        return SummedParts(
            moves=part["params"],
            buffers=part["buffers"],
            factor=float(part["factor"].sum()),  # of one number, or of none
            term=float(part["term"].sum()),
            loss=float(part["loss"][0]),
            length=float(part["length"][0]),
            weights=part["weights"],
        )


@dataclass(frozen=True, eq=False)
class SummedClients:
    """The clients in an opened sum, and what is known of each."""

    method: Method
    layout: Layout
    announcement: Announcement
    statements: Mapping[str, Statement]
    names: Sequence[str]  # in the order of their numbers

    @staticmethod
    def of(
        method: Method, layout: Layout, opened: Opened, numbers: Mapping[str, int]
    ) -> SummedClients:
        names = sorted(opened.survivors, key=lambda name: numbers[name])
        return SummedClients(method, layout, opened.announcement, opened.statements, names)

    @cached_property
    def places(self) -> list[int]:
        """Where each stands among the parties that were announced."""
        return [self.announcement.place(name) for name in self.names]

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """Of the classifier, those that are weighted separately."""
        return rules_of_method.separate_outputs(self.method, self.layout, self.announcement.facts)

    @cached_property
    def weights_in_clear(self) -> bool:
        """Whether each has said its weight."""
        return rules_of_method.weights_in_clear(self.method, self.announcement)

    @cached_property
    def factors(self) -> list[Numbers]:
        """What each multiplied its move with: its own weight, or what the policy made of it. Where
        weights are hidden, equal ones stand for them: only their sum is used.
        """
        if not self.weights_in_clear:
            return [self._equal_weights(place) for place in self.places]
        if self.announcement.terms.limits.limits_weights:
            return [self.announcement.weights[name] for name in self.names]
        return [self.statements[name].own_weights for name in self.names]

    def _equal_weights(self, place: int) -> Numbers:
        """One for the whole model, and for each output that the client at this place labels."""
        labelled = self.announcement.facts.labelled
        rows = [labelled is None or bool(labelled[place, output]) for output in self.outputs]
        return (1.0, *map(float, rows))

    def weights(self, parts_of_first_sum: Parts) -> Weights:
        """Their weights, which add up to one, with what explains them."""
        weights = normalised_weights(self.factors, self.layout, self.outputs)
        parts = {**self._known_parts(), **parts_of_first_sum}
        return replace(weights, parts=parts, limited=self._limited())

    def _known_parts(self) -> Parts:
        """What explains the weights, as far as it follows from what is known; else not a number."""
        own_weights = np.full(len(self.names), np.nan)
        if self.weights_in_clear:
            own_weights[:] = [self.statements[name].own_weights[0] for name in self.names]
        rule = rules_of_method.weighting_of(self.method)
        return rule.parts_of(own_weights, self.announcement.facts, self.places)

    def _limited(self) -> LimitedWeights | None:
        """What the policy changed for them."""
        if not self.announcement.terms.limits.limits_weights:
            return None
        weights, names = proposals_under_policy(self.method, self.announcement, self.layout)
        limited = weights.limited
        assert limited is not None  # a policy that limits weights says how
        rows = [names.index(name) for name in self.names]
        clauses = tuple(limited.clauses[row] for row in rows)
        return LimitedWeights(limited.before[rows], limited.after[rows], clauses)

    @property
    def hidden(self) -> tuple[str, ...]:
        """How long each client's move is stays hidden, and with it how much each moved the model;
        so does its weight, and what would explain it, where it is hidden.
        """
        if self.weights_in_clear:
            return ("influence",)
        parts = {name: part for name, part in self._known_parts().items() if part is not None}
        unknown = [name for name, part in parts.items() if np.isnan(part).all()]
        return ("influence", "weight", *unknown)


def updates_in_clear(round: Round, opened: Opened, numbers: Mapping[str, int]) -> list[Update]:
    """What clients in the sum said in clear, with the sent model in place of their own."""
    facts = opened.announcement.facts
    updates = []
    for name in sorted(opened.survivors, key=lambda name: numbers[name]):
        place = opened.announcement.place(name)
        update = Update(
            client=numbers[name],
            model=round.sent,
            size=size_as_int_if_whole(float(facts.sizes[place])),
            steps=opened.statements[name].steps,
            metrics={"loss": math.nan},
            labelled=None if facts.labelled is None else facts.labelled[place],
        )
        updates.append(update)
    return updates


# ------------------------------------------------------------------------------------- is it true?


def check_number_of_words(words: Words, form: WordLayout) -> None:
    """The clients added as many words as the model and the method need."""
    if words.shape != (form.length,):
        raise UntrueSum(f"a sum of {len(words):,} words where {form.length:,} are needed")


def check_weights_as_stated(weight_words: Words, clients: SummedClients) -> None:
    """The sums of the weights are exactly those of the weights that were stated."""
    stated = [0] * len(weight_words)
    for row in clients.factors:
        for column, weight in enumerate(row):
            stated[column] += round(math.ldexp(weight, FRACTION_BITS))
    if [int(word) for word in weight_words] != [number % 2**64 for number in stated]:
        raise UntrueSum("the weights in the sum are not those that the clients announced")


def check_weights_possible(totals: Column, clients: SummedClients) -> None:
    """The sums of hidden weights are not more or less than all clients together can have."""
    facts = clients.announcement.facts
    ranges = [
        rules_of_method.ranges_of_client(clients.method, (), facts, place, clients.outputs)
        for place in clients.places
    ]
    lowest, highest = np.sum(ranges, axis=0).T
    rounding = len(clients.names) * WEIGHT_ROUNDING
    if (totals < lowest - rounding).any() or (totals > highest + rounding).any():
        raise UntrueSum("the weights in the sum are not such as the clients' sizes allow")


def check_weights_exact(totals: Column, clients: SummedClients) -> None:
    """Means under these weights are as exact as is promised."""
    if weights_too_small(totals, len(clients.names)):
        raise UntrueSum(
            f"the clients' weights are too small for a secure sum: {totals.min():.2g} in all"
        )


def check_length_of_moves(parts: SummedParts, clients: SummedClients) -> None:
    """No sum is longer than the lengths of all moves, each times its weight, together."""
    rounded = len(clients.names) * math.sqrt(len(parts.moves)) + 1
    rounding = rounded * math.ldexp(1.0, -FRACTION_BITS)
    length = math.sqrt(float(np.dot(parts.moves, parts.moves)))
    if not length <= (1 + SLACK) * parts.length + rounding:
        raise UntrueSum(
            f"the sum of moves has the length {length:.3g}, and the lengths that were summed"
            f" with it allow {parts.length:.3g}"
        )


# --------------------------------------------------------------------------------------- the means


def means_of_sum(
    server: Server,
    parts: SummedParts,
    weights: Weights,
    outputs: Sequence[int],
    cohort: Cohort,
) -> OpenedSums:
    """The means under the weights, as a server rule takes them."""
    sent = cohort.sent
    moves = mean_moves(parts, outputs, sent.layout)
    if isinstance(server, Factored):
        scale = scale_by_term(server, parts)
        mean_factor = parts.factor / parts.weights[0]
        coefficients = scale * mean_factor * weights.values
    else:
        scale = server.scale
        coefficients = scale * weights.values
    total = sent.params + scale * moves
    return OpenedSums(
        cohort=cohort,
        weights=weights,
        coefficients=coefficients,
        total=total.astype(sent.params.dtype),
        mean_move=None if isinstance(server, Factored) else moves,
    )


def mean_moves(parts: SummedParts, outputs: Sequence[int], layout: Layout) -> Vector:
    """The mean move, in the memory of the sum: under the weights of the whole model, and of
    the output where that is weighted separately.
    """
    whole, *by_output = parts.weights
    moves = parts.moves
    moves /= whole
    for output, total in zip(outputs, by_output, strict=True):
        for row in layout.rows_of(output):
            moves[row] *= whole / total if total else 0.0
    return moves


def scale_by_term(server: Factored, parts: SummedParts) -> float:
    """What the moves are multiplied with: from the mean term, which no honest client takes to zero
    or below.
    """
    mean_term = parts.term / float(parts.weights[0])
    if not (mean_term > 0 and math.isfinite(server.scale_by(mean_term))):
        raise UntrueSum("the clients' terms do not give a step")
    return server.scale_by(mean_term)


# --------------------------------------------------------------------------- beside the parameters


def buffers_after(sent: Model, change: Vector) -> Vector:
    """Batch norm's statistics after the mean change; rounding makes no variance negative."""
    buffers = (sent.buffers + change).astype(sent.buffers.dtype)
    np.maximum(buffers, 0, out=buffers, where=sent.layout.variances)
    return buffers


def counters_after(cohort: Cohort) -> Vector:
    """As after the steps that clients state: the largest, as in every other engine. As sent where
    none states any.
    """
    sent = cohort.sent
    steps = max((update.steps for update in cohort.updates if update.steps is not None), default=0)
    counters = sent.counters.copy()
    for entry in sent.layout.entries:
        if entry.kind == "counter" and entry.name.endswith(COUNTER):
            counters[entry.span] += steps
    return counters

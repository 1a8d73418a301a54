"""The server's side of a secure round: what it makes of the sums, as ledger, model and state.

All that it has are the sums and what was said in clear. The weights in the sum must be those that
were announced, to the bit, and the mean move no longer than the announced lengths allow; otherwise
nobody counts in the round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from feddraw.core import (
    Aggregate,
    Cohort,
    Facts,
    LimitedWeights,
    Method,
    Parts,
    State,
    Update,
    Weights,
)
from feddraw.core.model import Layout, Model, Vector
from feddraw.core.sums import Column
from feddraw.errors import UserError
from feddraw.secure.rounds import round_weights
from feddraw.secure.rounds.announcement import Announcement, ClientAnnouncement, Numbers
from feddraw.secure.rounds.round_weights import (
    WEIGHT_ROUNDING,
    secure_outputs_with_own_weight,
    secure_weights_from_own,
)
from feddraw.secure.rounds.secure_cohort import SecureCohort
from feddraw.secure.rounds.word_layout import WordLayout
from feddraw.secure.sums.fixed_point import FRACTION_BITS, Words, from_fixed_point
from feddraw.server.gate import Gate, GateVerdict, compare_with_median
from feddraw.server.partial_labels import with_unweighted_rows
from feddraw.server.policy import size_as_int_if_whole
from feddraw.server.round import RoundResult, round_result

SLACK = 1e-3  # rounding of the lengths that clients announce
COUNTER = "num_batches_tracked"  # of batch norm: one more with every step


class UntrueSum(UserError):
    """What clients said in clear does not fit the sum: nobody counts."""


def inform_of_first_sum(
    method: Method, announcement: Announcement, state: State, total: Words, summed: Sequence[str]
) -> tuple[Announcement, Parts, State]:
    """What comes of the first of two sums, which is over some clients: what all are told, and parts
    for the ledger.
    """
    facts, places = announcement.facts(), [announcement.place(name) for name in summed]
    told, parts, weighting = method.weighting.inform(
        from_fixed_point(total), facts, places, state["weighting"]
    )
    return replace(announcement, told=tuple(told.tolist())), parts, state | {"weighting": weighting}


def check_client_announcement(
    method: Method,
    announcement: Announcement,
    layout: Layout,
    name: str,
    announced: ClientAnnouncement,
) -> None:
    """Refuse what a client announces if its size and the method do not allow it; before its values
    are added.
    """
    announced.check()
    facts, place = announcement.facts(), announcement.place(name)
    if announced.size != announcement.parties[place].size:
        raise UserError(
            f"size {announced.size} where {announcement.parties[place].size} was announced"
        )
    if set(announced.numbers) != set(method.server.announced) or any(
        one <= 0 for one in announced.numbers.values()
    ):
        raise UserError("other numbers beside its weight than the method asks for")
    outputs = secure_outputs_with_own_weight(method, layout, facts)
    if len(announced.own) != 1 + len(outputs):
        raise UserError(f"{len(announced.own)} weights where {1 + len(outputs)} are needed")
    limits = [method.weighting.own_limits(facts, place)]
    for output in outputs:
        among, mine = facts.labelling(output, place)
        same = (announced.own[0], announced.own[0])
        own = method.weighting.own_limits(among, mine or 0) if method.weighting.by_output else same
        limits.append((0.0, 0.0) if mine is None else own)
    for weight, (low, high) in zip(announced.own, limits, strict=True):
        if not low - WEIGHT_ROUNDING <= weight <= high + WEIGHT_ROUNDING:
            raise UserError(
                f"it weighs itself {weight:.6g}, and its size allows from {low:.6g} to {high:.6g}"
            )


def secure_round_result(
    method: Method,
    announcement: Announcement,
    sent: Model,
    state: State,
    total: Words | None,
    announced: Mapping[str, ClientAnnouncement],
    clients: Sequence[str],
    *,
    refused: Mapping[str, str] | None = None,
    parts: Parts | None = None,
    gate: Gate | None = None,
) -> RoundResult:
    """The new model from the opened sum (its memory is used) and what those in it announced.

    `clients` are all of the federation, `refused` says why some of those asked are not in the sum,
    and `parts` is what the first of two sums explains. Without a total, or where it is not true,
    the model stays as it was.
    """
    numbers = {name: number for number, name in enumerate(clients)}
    names = sorted(announced, key=lambda name: numbers[name])
    said = {numbers[party.name]: party.size for party in announcement.parties}
    limited = announcement.limits().limited_sizes(said)
    facts = announcement.facts()
    updates = [
        _update_in_clear(numbers[n], announced[n], sent, facts, announcement.place(n))
        for n in names
    ]
    verdicts = {numbers[name]: GateVerdict("", announced[name].distance) for name in names}
    blank = Cohort(announcement.round, announcement.rounds, sent, updates, len(clients))
    aggregate, why = None, "the secure sum failed"
    try:
        if total is not None and updates:
            for name in names:
                try:
                    check_client_announcement(
                        method, announcement, sent.layout, name, announced[name]
                    )
                except UserError as error:
                    raise UntrueSum(
                        f"{name} is in the sum with what it must not say: {error}"
                    ) from None
            opened = _SecureRoundServer(
                method, announcement, facts, blank, names, [announced[name] for name in names]
            )
            aggregate = opened.aggregate(total, state, parts or {})
    except UntrueSum as error:
        why = str(error)
    if aggregate is None:
        verdicts = {client: GateVerdict(why) for client in verdicts}
    else:
        verdicts |= compare_with_median(verdicts, gate or Gate())
    for name, reason in (refused or {}).items():
        if name not in announced:
            size = float(facts.sizes[announcement.place(name)])
            updates.append(Update(numbers[name], sent, size, 0, {"loss": math.nan}))
            verdicts[numbers[name]] = GateVerdict(reason)
    return round_result(
        method, blank, state, aggregate, clients, said, updates, verdicts, said, limited
    )


def _update_in_clear(
    client: int, one: ClientAnnouncement, sent: Model, facts: Facts, place: int
) -> Update:
    """What a client said in clear, with the sent model in place of its own."""
    extra = {name: np.array([value]) for name, value in one.numbers.items()}
    labelled = None if facts.labelled is None else facts.labelled[place]
    size = size_as_int_if_whole(float(facts.sizes[place]))
    return Update(client, sent, size, one.steps, one.metrics, extra, labelled)


@dataclass(frozen=True, eq=False)
class _SecureRoundServer:
    """What the server makes of one opened sum and what was said about it."""

    method: Method
    announcement: Announcement
    facts: Facts
    cohort: Cohort  # without models
    names: Sequence[str]
    announced: Sequence[ClientAnnouncement]

    def aggregate(self, total: Words, state: State, parts: Parts) -> Aggregate:
        sent, method = self.cohort.model, self.method
        form = WordLayout.of(method, sent.layout, self.facts)
        spans = form.spans()
        if total.shape != (form.length,):
            raise UntrueSum(f"a sum of {len(total):,} words where {form.length:,} are needed")
        own = self._summed_weights()
        sums = self._checked(own, total[spans["weights"]])
        weights = self._weights(own, form, parts)
        terms = from_fixed_point(total[spans["terms"]]) / sums[0]
        multiplied = (
            np.full(len(own), terms[0]) if form.terms else method.server.factors(self.cohort)
        )
        values = from_fixed_point(total, in_place=True)
        if not form.terms:
            self._check_length(values[spans["params"]], own, multiplied)
        means = {name: values[spans[f"extra.{name}"]] for name in form.extras}
        values[: spans["terms"].start] /= sums[0]
        moves = values[spans["params"]]
        for output, whole in zip(form.outputs, sums[1:], strict=True):
            for row in sent.layout.rows_of(output):
                moves[row] *= sums[0] / whole if whole else 0.0
        about = (
            self.cohort.round,
            self.cohort.rounds,
            sent,
            self.cohort.updates,
            self.cohort.population,
        )
        term, lengths = (
            float(terms[1]) if form.terms else 0.0,
            np.array([one.distance for one in self.announced]),
        )
        cohort = SecureCohort(
            *about,
            weights=weights,
            moves=moves,
            means=means,
            multiplied=multiplied,
            term=term,
            announced=lengths,
        )
        params, server = method.server.step(cohort, weights, state["server"])
        model = Model(
            params,
            _secure_buffers_after_change(sent, values[spans["buffers"]]),
            self._counters(),
            sent.layout,
        )
        coefficients = method.server.coefficients(cohort, weights)
        found = Aggregate(
            model, weights, coefficients, {"weighting": state["weighting"], "server": server}
        )
        return with_unweighted_rows(found, cohort, method, state)

    def _summed_weights(self) -> list[Numbers]:
        """What each client in the sum multiplied with."""
        if self.announcement.limits().limits_weights:
            return [self.announcement.weights[name] for name in self.names]
        return [one.own for one in self.announced]

    def _checked(self, own: Sequence[Numbers], words: Words) -> Column:
        """The sums of the weights, which must be those that were announced."""
        said = sum(
            np.array([round(math.ldexp(one, FRACTION_BITS)) for one in row], object) for row in own
        )
        if [int(word) for word in words] != [int(one) % 2**64 for one in np.atleast_1d(said)]:
            raise UntrueSum("the weights in the sum are not those that the clients announced")
        sums = from_fixed_point(words)
        if round_weights.weights_too_small(sums, len(own)):
            raise UntrueSum(
                f"the clients' weights are too small for a secure sum: {sums.min():.2g} in all"
            )
        return sums

    def _weights(self, own: Sequence[Numbers], form: WordLayout, parts: Parts) -> Weights:
        """The weights of those in the sum, with what explains them."""
        weights = secure_weights_from_own(list(own), self.cohort.model.layout, form.outputs)
        places = [self.announcement.place(name) for name in self.names]
        proposed = np.array([one.own[0] for one in self.announced])
        known = self.method.weighting.parts_of(proposed, self.facts, places)
        return replace(weights, parts={**known, **parts}, limited=self._limited())

    def _limited(self) -> LimitedWeights | None:
        """What the policy changed for those in the sum."""
        if not self.announcement.limits().limits_weights:
            return None
        proposal = (self.method, self.announcement, self.cohort.model.layout)
        weights, names = round_weights.secure_proposals_under_policy(*proposal)
        assert weights.limited is not None
        found, rows = weights.limited, [names.index(name) for name in self.names]
        return LimitedWeights(
            found.before[rows], found.after[rows], tuple(found.clauses[row] for row in rows)
        )

    def _check_length(self, moves: Vector, own: Sequence[Numbers], factors: Column) -> None:
        """No sum is longer than all announced lengths, each times its weight, together."""
        heaviest = np.array([max(row) for row in own]) * factors
        most = float(heaviest @ np.array([one.distance for one in self.announced]))
        rounding = len(own) * math.sqrt(len(moves)) * math.ldexp(1.0, -FRACTION_BITS - 1)
        length = math.sqrt(float(np.dot(moves, moves)))
        if not length <= (1 + SLACK) * most + rounding:
            raise UntrueSum(
                f"the sum of moves has the length {length:.3g}, and the announced lengths allow"
                f" {most:.3g}"
            )

    def _counters(self) -> Vector:
        """As after the announced steps: the largest, as in every other engine."""
        sent, steps = self.cohort.model, max(one.steps for one in self.announced)
        found = sent.counters.copy()
        for entry in sent.layout.entries:
            if entry.kind == "counter" and entry.name.endswith(COUNTER):
                found[entry.span] += steps
        return found


def _secure_buffers_after_change(sent: Model, change: Vector) -> Vector:
    """Batch norm's statistics after the mean change; rounding makes no variance negative."""
    found = (sent.buffers + change).astype(sent.buffers.dtype)
    np.maximum(found, 0, out=found, where=sent.layout.variances)
    return found

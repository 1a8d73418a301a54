"""From updates to a new model: all together, or one by one as they arrive.

A collector is called with a `Round` and the updates as they arrive: it checks each update, weighs
and sums those that the gate accepts, makes the server's step, and writes down who counted how much.
`Together` waits for all updates, so that the gate can compare them. `Streaming` adds each to the
sum at once and forgets it: memory for one model, whatever the number of clients. The third
collector is `secure.rounds`, where the server sees sums only.

Where nobody is refused all three give the same weights. They differ in whose images the prior is
over: here, those of the clients that are accepted; in a stream and under secure sums, which must
weigh before all have answered, those of the clients that were sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from feddraw.core import (
    ClientView,
    Cohort,
    Column,
    Factored,
    Facts,
    Joint,
    Model,
    Proxy,
    SelfScored,
    Server,
    State,
    Sums,
    Update,
    Vector,
    Weighted,
    Weighting,
    Weights,
    mean_buffers,
    weighted_sum,
    why_not_streaming,
)
from feddraw.core.cohort import columns_of
from feddraw.errors import UserError
from feddraw.server.aggregate import Aggregate
from feddraw.server.gate import Gate, Verdict, accept, check_update, compare_with_median, inspect
from feddraw.server.partial_labels import divided_among_labelling, with_unlabelled_rows_as_sent
from feddraw.server.policy import Policy, SizeLimit
from feddraw.server.round import Intake, Round, RoundResult, close_round

BLOCK = 1 << 15  # numbers at a time: no second sum in float64 beside the first


@dataclass(frozen=True, eq=False)
class Together:
    """Waits for all updates, so that each can be compared with the others."""

    gate: Gate = field(default_factory=Gate)
    policy: Policy = field(default_factory=Policy)
    proxy: Proxy | None = None  # labelled images at the server, for the methods that need some
    in_turn: ClassVar[bool] = False

    def __call__(self, round: Round, arriving: Iterable[Update]) -> RoundResult:
        """Check each update by itself; compare, weigh and sum the sound ones; step; write down who
        counted how much.
        """
        if round.method.needs.server_images and self.proxy is None:
            raise UserError("this weighting needs labelled images at the server")
        self.gate.check_method(round.method)

        updates = sorted(arriving, key=lambda update: update.client)  # never in order of arrival
        verdicts = inspect(updates, round.sent, round.method, len(round.clients), self.gate)

        reported = {u.client: u.size for u in updates if not verdicts[u.client].reason}
        size_limit = self.policy.size_limit(reported.values())
        received = [_limited(update, size_limit, verdicts[update.client]) for update in updates]
        sound = [update for update in received if not verdicts[update.client].reason]

        aggregate, final = self._accept_and_aggregate(sound, verdicts, round)
        intake = Intake(received, final, reported, size_limit, self.policy.min_sites)
        return close_round(round, intake, aggregate)

    def _accept_and_aggregate(
        self, sound: Sequence[Update], verdicts: Mapping[int, Verdict], round: Round
    ) -> tuple[Aggregate | None, Mapping[int, Verdict]]:
        """The gate compares how far the sound updates moved, and those that it accepts are
        aggregated; None where it accepts none. Also gives the gate's last word on each client.

        Lengths and sums need the same memory, so where the rule allows it one pass over all updates
        computes both: a draft, which holds if the gate accepts all of them unchanged. Otherwise
        those that are left are weighed and summed again.
        """
        cohort = round.cohort(sound, self.proxy)
        draft = self._draft(cohort, round)
        distances = cohort.distances if draft is None else draft.distances
        accepted, verdicts = accept(cohort, distances, verdicts, self.gate)
        if not accepted:
            return None, verdicts
        if draft is not None and accepted == sound:
            return draft.aggregate(), verdicts
        return self._aggregate(replace(cohort, updates=accepted), round), verdicts

    def _draft(self, cohort: Cohort, round: Round) -> _Draft | None:
        """The sums over all sound updates, with how far each of them moved, from one pass.

        Only for rules that weigh each client by itself, where a broken update spoils nothing but
        the sum; None for others, and where a weight is no number.
        """
        rule = round.method.aggregation
        if not cohort.updates or isinstance(rule, Joint) or why_not_streaming(round.method):
            return None
        with np.errstate(all="ignore"):
            weights, state = self._weigh(rule, cohort, round)
            if not np.isfinite(weights.values).all():
                return None
            sums, distances = CohortSums.measured(rule, cohort, weights)
        return _Draft(rule, sums, distances, state)

    def _aggregate(self, cohort: Cohort, round: Round) -> Aggregate:
        rule = round.method.aggregation
        if isinstance(rule, Joint):
            return joined(rule, cohort, round.state)
        weights, state = self._weigh(rule, cohort, round)
        sums, _ = CohortSums.measured(rule, cohort, weights)
        return sums.aggregate(rule.server, state)

    def _weigh(self, rule: Weighted, cohort: Cohort, round: Round) -> tuple[Weights, State]:
        """How much each client counts, within the policy and by finding, and the next state.

        Weights that are no numbers pass as they are: `close_round` refuses the model they give.
        """
        weights, weighting_state = weigh_cohort(rule.weighting, cohort, round.state["weighting"])
        state = round.state | {"weighting": weighting_state}
        if not np.isfinite(weights.values).all():
            return weights, state
        weights = self.policy.bounded(weights, cohort, round.clients)
        return divided_among_labelling(cohort, weights), state


class NotWeightsError(UserError):
    """A rule's `weigh` returns something else than weights and a state."""


def weigh_cohort(weighting: Weighting, cohort: Cohort, state: State) -> tuple[Weights, State]:
    """Weights and the next state; a rule of one's own that returns anything else is told so."""
    returned: Any = weighting.weigh(cohort, state)
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    if not is_pair or not isinstance(returned[0], Weights):
        raise NotWeightsError(
            f"weigh of {type(weighting).__name__} must return (Weights, state), for instance"
            " `return normalize(scores), state`"
        )
    weights, next_state = returned
    clients = len(cohort.updates)
    if np.shape(weights.values) != (clients,):
        raise NotWeightsError(
            f"weigh of {type(weighting).__name__} must return one weight for each of the {clients}"
            f" clients of the cohort, not an array of shape {np.shape(weights.values)}"
        )
    return weights, next_state


def _limited(update: Update, limit: SizeLimit, verdict: Verdict) -> Update:
    """The update with the size that counts; a refused one as it came."""
    if verdict.reason:
        return update
    return replace(update, size=limit.counted(update.size))


@dataclass(frozen=True, eq=False)
class _Draft:
    """The sums over all sound updates, and how far each of them moved."""

    rule: Weighted
    sums: CohortSums
    distances: Column
    state: State

    def aggregate(self) -> Aggregate:
        return self.sums.aggregate(self.rule.server, self.state)


def joined(rule: Joint, cohort: Cohort, state: State) -> Aggregate:
    """What a joint rule makes of a cohort."""
    weights = divided_among_labelling(cohort, rule.weigh(cohort))
    result = rule.combine(cohort, weights)
    params = result.params
    if cohort.labelled is not None:
        params = with_unlabelled_rows_as_sent(params, cohort.sent.params, weights)
    model = Model(params, result.buffers, _largest_counters(cohort), cohort.sent.layout)
    return Aggregate(model, weights, result.coefficients, state)


def stepped(
    server: Server, sums: Sums, state: State, *, buffers: Vector, counters: Vector
) -> Aggregate:
    """The server's step with these sums; batch-norm statistics and counters are those of the
    clients together.
    """
    sent = sums.cohort.sent
    params, server_state = server.step(sums, state["server"])
    if sums.cohort.labelled is not None:
        params = with_unlabelled_rows_as_sent(params, sent.params, sums.weights)
    return Aggregate(
        model=Model(params, buffers, counters, sent.layout),
        weights=sums.weights,
        coefficients=server.coefficients_in_ledger(sums),
        state=state | {"server": server_state},
    )


def _largest_counters(cohort: Cohort) -> Vector:
    """Counters are integers, which have no mean: the new model has the largest."""
    return np.asarray(np.max([update.model.counters for update in cohort.updates], axis=0))


@dataclass(frozen=True, eq=False)
class CohortSums(Sums):
    """Sums over updates that all lie here."""

    @staticmethod
    def measured(rule: Weighted, cohort: Cohort, weights: Weights) -> tuple[CohortSums, Column]:
        """The sums under these weights and the server rule's factors, and how far each moved."""
        server = rule.server
        if isinstance(server, Factored):
            views = cohort.views()
            factors = np.array([server.factor(view) for view in views])
            terms = np.array([server.term(view) for view in views])
            coefficients, segments = weights.times(
                lambda values: server.coefficients(values, factors, terms)
            )
        elif server.scale != 1.0:
            coefficients, segments = weights.times(lambda values: server.scale * values)
        else:
            coefficients = weights.values
            segments = weights.segments
        total, distances = cohort.averaged_and_measured(coefficients, segments)
        return CohortSums(cohort, weights, coefficients, total), distances

    def aggregate(self, server: Server, state: State) -> Aggregate:
        """The server's step with these sums."""
        buffers = mean_buffers(self.cohort, self.weights)
        counters = _largest_counters(self.cohort)
        return stepped(server, self, state, buffers=buffers, counters=counters)

    def moved_by(self, by: Column, span: slice) -> Vector:
        return self.cohort.moved(by, span)

    def extra_by(self, name: str, by: Column, span: slice) -> Vector:
        return weighted_sum(by, self.cohort.extra(name)[:, span])


@dataclass(frozen=True, eq=False)
class Streaming:
    """Adds each update to the sum as it arrives, in client order, and forgets it.

    A softmax is carried with its running maximum: when a larger score comes, the sum so far is
    scaled down. The order is that of the clients, so the bits depend neither on who answers first
    nor on the number of workers; they differ from those of `Together` in the last digit.
    """

    sizes: Sequence[int]  # by client, the images that it will report
    gate: Gate = field(default_factory=Gate)
    policy: Policy = field(default_factory=Policy)
    in_turn: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_stream_limits(self.gate, self.policy)

    def __call__(self, round: Round, arriving: Iterable[Update]) -> RoundResult:
        """Check, weigh and add each update; then step, and write down who counted how much."""
        announced = {client: self.sizes[client] for client in round.sampled}
        size_limit = self.policy.size_limit(announced.values())
        stream = _Stream.begin(round, announced, size_limit)
        verdicts: dict[int, Verdict] = {}
        received = []
        for update in arriving:
            if update.client in verdicts:  # what is in the sum stays there
                again = "answered again, its first answer counts"
                verdicts[update.client] = replace(verdicts[update.client], note=again)
                continue
            verdict = self._check(update, round, announced)
            resized = _limited(update, size_limit, verdict)
            if not verdict.reason:
                stream.add(resized)
            verdicts[update.client] = verdict
            received.append(replace(resized, model=round.sent))  # its own goes with the next one
        sound = {client: verdict for client, verdict in verdicts.items() if not verdict.reason}
        verdicts |= compare_with_median(sound, self.gate)
        aggregate = stream.aggregate() if stream.counts else None
        intake = Intake(received, verdicts, announced, size_limit, self.policy.min_sites)
        return close_round(round, intake, aggregate)

    def _check(self, update: Update, round: Round, announced: Mapping[int, int]) -> Verdict:
        """What can be said of an update before the others are there."""
        if update.client not in announced:
            return Verdict("not a client of this federation, or not asked")
        verdict = check_update(update, round.sent, round.method, self.gate.max_size)
        if not verdict.reason and update.size != announced[update.client]:
            size = announced[update.client]
            return Verdict(f"size {update.size} where {size} was announced")
        return verdict


def check_stream_limits(gate: Gate, policy: Policy) -> None:
    """Refuse a gate and a policy that need all updates at once."""
    if gate.norm == "refuse" or gate.clip:
        raise UserError(
            "stream = true cannot wait for the median: set gate.norm to off or warn, and gate.clip"
            " to 0"
        )
    if policy.limits_weights:
        raise UserError(
            "a stream adds an update before all weights are known, so a policy cannot limit them:"
            " set stream = false, or leave only policy.max_size and policy.max_size_times"
        )


@dataclass(eq=False)
class _Stream:
    """The sum of one round, update by update."""

    round: Round
    rule: Weighted
    weighting: SelfScored
    facts: Facts
    places: Mapping[int, int]  # by client, its index in the facts
    sum: RunningSum
    counters: Vector
    scores: list[float] = field(default_factory=list)
    parts: list[Mapping[str, float]] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)  # with the sent model in place of theirs

    @staticmethod
    def begin(
        round: Round,
        announced: Mapping[int, float],
        size_limit: SizeLimit,
    ) -> _Stream:
        rule = round.method.aggregation
        if reason := why_not_streaming(round.method):
            raise UserError(f"this method cannot stream: {reason}")
        assert isinstance(rule, Weighted)
        assert isinstance(rule.weighting, SelfScored)
        sizes = np.array([size_limit.counted(size) for size in announced.values()], np.float64)
        return _Stream(
            round=round,
            rule=rule,
            weighting=rule.weighting,
            facts=Facts(round.number, round.rounds, sizes),
            places={client: place for place, client in enumerate(announced)},
            sum=RunningSum(len(round.sent.params), len(round.sent.buffers)),
            counters=np.zeros_like(round.sent.counters),
        )

    @property
    def counts(self) -> bool:
        """Whether anybody's update is in the sum."""
        return self.sum.total > 0

    def add(self, update: Update) -> None:
        """Score an accepted update, add it to the sum, forget its model."""
        view = ClientView(self.round.sent, update)
        score, parts = self.weighting.score(view, self.facts, self.places[update.client])
        params = update.model.params
        learnt = view.learnt(slice(None))
        if learnt is not None:
            # Zeros in rows of findings that it does not label; the others' are scaled up later.
            params = np.where(learnt, params, 0).astype(params.dtype)
        self.sum.add(score, params, update.model.buffers)
        np.maximum(self.counters, update.model.counters, out=self.counters)
        self.scores.append(score)
        self.parts.append(parts)
        self.updates.append(replace(update, model=self.round.sent))

    def aggregate(self) -> Aggregate:
        """Turn scores into weights and the sum into the average; then the server's step."""
        cohort = self.round.closed_cohort(self.updates)
        values = np.exp(np.array(self.scores) - self.sum.top) / self.sum.total
        weights = divided_among_labelling(cohort, Weights(values, columns_of(self.parts)))
        average, buffers = self.sum.averages()
        self._rescale_to_labelling(average, weights)
        sums = StreamedSums(cohort, weights, values, average)
        return stepped(
            self.rule.server, sums, self.round.state, buffers=buffers, counters=self.counters
        )

    def _rescale_to_labelling(self, average: Vector, weights: Weights) -> None:
        """In rows of a finding the sum has zeros for the clients that do not label it: the mean
        over the others is the sum by their share. Without any, the row stays as it was sent.
        """
        sent = self.round.sent.params
        for piece in weights.pieces:
            share = weights.values[piece.values > 0].sum()
            for span in piece.spans:
                average[span] = average[span] / share if share else sent[span]


@dataclass(frozen=True, eq=False)
class StreamedSums(Sums):
    """Sums of which only the weighted average is left."""

    def moved_by(self, by: Column, span: slice) -> Vector:
        raise UserError("the server rule needs more than the clients' average: set stream = false")

    def extra_by(self, name: str, by: Column, span: slice) -> Vector:
        raise UserError("the server rule needs more than the clients' average: set stream = false")


class RunningSum:
    """Vectors times exp(score), in float64, under the running maximum of the scores."""

    def __init__(self, *lengths: int) -> None:
        self.sums = [np.zeros(length) for length in lengths]
        self.total = 0.0
        self.top = -math.inf

    def add(self, score: float, *vectors: Vector) -> None:
        """One client's vectors, times its weight; a score of -inf adds nothing."""
        if score == -math.inf:
            return
        if score > self.top:
            scale = math.exp(self.top - score)
            if self.total:
                for so_far in self.sums:
                    np.multiply(so_far, scale, out=so_far)
            self.top = score
            self.total *= scale
        weight = math.exp(score - self.top)
        self.total += weight
        for so_far, vector in zip(self.sums, vectors, strict=True):
            for start in range(0, len(vector), BLOCK):
                span = slice(start, start + BLOCK)
                so_far[span] += np.multiply(vector[span], weight, dtype=np.float64)

    def averages(self) -> list[Vector]:
        """The weighted means, as float32."""
        means = []
        for so_far in self.sums:
            mean = np.empty(len(so_far), np.float32)
            np.divide(so_far, self.total, out=mean, casting="same_kind")
            means.append(mean)
        return means

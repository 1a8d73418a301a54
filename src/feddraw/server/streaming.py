"""Aggregation of updates as they come, in client order: memory for one model, for any number of
clients.

Where a client's score depends only on its own update, the sent model and the sizes announced before
training, its update is added to the sum at once and forgotten. A softmax is carried with its
running maximum: when a larger score comes, the sum so far is scaled down. The order is that of the
clients, so the bits depend neither on who answers first nor on the number of workers; they differ
from those of one sum over all updates in the last digit.

The prior is over the clients that were asked. A client that is refused later is missing from the
sum, but the priors of the others stay; without streaming, the prior is over those that count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from feddraw.core import (
    Aggregate,
    Cohort,
    Column,
    Method,
    Model,
    Segment,
    State,
    SummedCohort,
    Update,
    Vector,
    Weights,
)
from feddraw.errors import UserError
from feddraw.server.gate import Gate, GateVerdict, check_update, compare_with_median
from feddraw.server.partial_labels import divided_among_labelling, with_unweighted_rows
from feddraw.server.policy import Policy, with_limited_size
from feddraw.server.round import RoundResult, round_result

_STREAM_BLOCK = 1 << 15  # numbers at a time: no second sum in float64 beside the first


class RunningSum:
    """Vectors times exp(score), in float64, under the running maximum of the scores."""

    def __init__(self, *lengths: int) -> None:
        self.sums = [np.zeros(length) for length in lengths]
        self.total, self.top = 0.0, -math.inf

    def add(self, score: float, *vectors: Vector) -> None:
        if score > self.top:
            scale = math.exp(self.top - score)
            if self.total:
                for so_far in self.sums:
                    np.multiply(so_far, scale, out=so_far)
            self.top, self.total = score, self.total * scale
        weight = math.exp(score - self.top)
        self.total += weight
        for so_far, vector in zip(self.sums, vectors, strict=True):
            for start in range(0, len(vector), _STREAM_BLOCK):
                span = slice(start, start + _STREAM_BLOCK)
                so_far[span] += np.multiply(vector[span], weight, dtype=np.float64)

    def averages(self) -> list[Vector]:
        rooms = [np.empty(len(so_far), np.float32) for so_far in self.sums]
        pairs = zip(self.sums, rooms, strict=True)
        return [
            np.divide(so_far, self.total, out=room, casting="same_kind") for so_far, room in pairs
        ]


class StreamedRound:
    """The aggregation of one round, update by update, in client order."""

    def __init__(self, method: Method, cohort: Cohort, sizes: Mapping[int, float]) -> None:
        self._method, self._cohort, self._sizes = method, cohort, sizes
        self._images = sum(sizes.values())
        self._sum = RunningSum(len(cohort.model.params), len(cohort.model.buffers))
        self._counters = np.zeros_like(cohort.model.counters)
        self._scores: list[float] = []
        self._parts: list[Mapping[str, float]] = []
        self.updates: list[Update] = []  # taken so far, with the sent model in place of their own

    def take(self, update: Update) -> None:
        """Weigh an accepted update, add it to the sum, forget its model."""
        single = replace(self._cohort, updates=[update])
        score, parts = self._method.weighting.score(
            single, self._sizes[update.client] / self._images
        )
        params, learnt = update.model.params, single.learnt(slice(None))
        if (
            learnt is not None
        ):  # zeros in the rows of findings that it does not label; the others' are scaled up later
            params = np.where(learnt[0], params, 0).astype(params.dtype)
        self._sum.add(score, params, update.model.buffers)
        np.maximum(self._counters, update.model.counters, out=self._counters)
        self._scores.append(score)
        self._parts.append(parts)
        self.updates.append(replace(update, model=self._cohort.model))

    def aggregate(self, state: State) -> Aggregate:
        """As `Method.aggregate` of all updates at once."""
        values = np.exp(np.array(self._scores) - self._sum.top) / self._sum.total
        parts = {name: np.array([one[name] for one in self._parts]) for name in self._parts[0]}
        weights = divided_among_labelling(
            replace(self._cohort, updates=self.updates), Weights(values, parts)
        )
        average, buffers = self._sum.averages()
        for piece in weights.pieces:
            share = values[piece.values > 0].sum()
            for span in piece.spans:
                average[span] = average[span] / share if share else self._cohort.model.params[span]
        about = (
            self._cohort.round,
            self._cohort.rounds,
            self._cohort.model,
            self.updates,
            self._cohort.population,
        )
        cohort = StreamedCohort(*about, weights=weights, total=average)
        params, server = self._method.server.step(cohort, weights, state["server"])
        model = Model(params, buffers, self._counters, self._cohort.model.layout)
        coefficients = self._method.server.coefficients(cohort, weights)
        aggregate = Aggregate(
            model, weights, coefficients, {"weighting": state["weighting"], "server": server}
        )
        return with_unweighted_rows(aggregate, cohort, self._method, state)


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamedCohort(SummedCohort):
    """A cohort of which only the weighted average is left."""

    def combine_and_measure(
        self, coefficients: Column, segments: Sequence[Segment] = ()
    ) -> tuple[Vector, Column]:
        raise UserError(
            "the server rule needs more than the clients' weighted average: set stream = false"
        )


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
) -> RoundResult:
    """As `aggregate_round`, for updates that come one by one, in client order, after their sizes
    were announced.
    """
    gate, policy = gate or Gate(), policy or Policy()
    check_stream_limits(gate, policy)
    limited = policy.limited_sizes(sizes)
    counted = {
        client: limited[client][0] if client in limited else size for client, size in sizes.items()
    }
    cohort = Cohort(round, rounds, model, (), len(clients))
    stream = StreamedRound(method, cohort, counted)
    verdicts: dict[int, GateVerdict] = {}
    received = []
    for update in updates:
        if update.client in verdicts:  # what is in the sum stays there
            verdicts[update.client] = replace(
                verdicts[update.client], note="answered again, its first answer counts"
            )
            continue
        verdict = _check_streamed(update, model, method, sizes, gate)
        resized = with_limited_size(update, limited)
        if not verdict.reason:
            stream.take(resized)
        verdicts[update.client] = verdict
        received.append(replace(resized, model=model))  # its own is gone with the next one
    verdicts |= compare_with_median(
        {client: v for client, v in verdicts.items() if not v.reason}, gate
    )
    aggregate = stream.aggregate(state) if stream.updates else None
    return round_result(
        method, cohort, state, aggregate, clients, sizes, received, verdicts, sizes, limited
    )


def check_stream_limits(gate: Gate, policy: Policy) -> None:
    """Refuse a gate and a policy that need all updates at once."""
    if gate.norm == "refuse" or gate.clip:
        raise UserError(
            "stream = true cannot wait for the median: set gate.norm to off or warn, and gate.clip"
            " to 0"
        )
    if policy.limits_weights:
        remedy = "set stream = false, or leave only policy.max_size and policy.max_size_times"
        raise UserError(
            "a stream adds an update before all weights are known, so a policy cannot limit them:"
            f" {remedy}"
        )


def _check_streamed(
    update: Update, model: Model, method: Method, sizes: Mapping[int, int], gate: Gate
) -> GateVerdict:
    """What can be said of an update before the others are there."""
    if update.client not in sizes:
        return GateVerdict("not a client of this federation, or not asked")
    verdict = check_update(update, model, method.sends, gate.max_size)
    if not verdict.reason and update.size != sizes[update.client]:
        return GateVerdict(f"size {update.size} where {sizes[update.client]} was announced")
    return verdict

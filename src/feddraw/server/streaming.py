"""Aggregation of updates as they come, in client order: one model of memory, however many clients there are.

Where a client's score follows from its own update, the sent model and the sizes announced before training, its update
enters the sum at once and is forgotten. A softmax is carried with its running maximum: when a larger score comes, what
was summed before is scaled down. The order is that of the clients, so the bits depend neither on who answers first nor
on the number of workers; they differ from those of the sum of all at once in the last place.

The prior is over the clients that were asked. Who is refused after that is missing from the sum, but others' priors
stay as they were; all at once, they would be over those that count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from feddraw.core import Aggregate, Cohort, Method, Model, Place, State, Update, Vector, Weights

_BLOCK = 1 << 15  # numbers at a time: no second sum in float64 beside the first


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
            for start in range(0, len(vector), _BLOCK):
                place = slice(start, start + _BLOCK)
                so_far[place] += np.multiply(vector[place], weight, dtype=np.float64)

    def averages(self) -> list[Vector]:
        rooms = [np.empty(len(so_far), np.float32) for so_far in self.sums]
        pairs = zip(self.sums, rooms, strict=True)
        return [np.divide(so_far, self.total, out=room, casting="same_kind") for so_far, room in pairs]


class Stream:
    """One round: updates in, in client order, and what a server makes of them out."""

    def __init__(self, method: Method, cohort: Cohort, sizes: Mapping[int, float]) -> None:
        self._method, self._cohort, self._sizes = method, cohort, sizes
        self._images = sum(sizes.values())
        self._sum = RunningSum(len(cohort.model.params), len(cohort.model.buffers))
        self._counters = np.zeros_like(cohort.model.counters)
        self._scores: list[float] = []
        self._parts: list[Mapping[str, float]] = []
        self.updates: list[Update] = []  # taken so far, with the sent model in place of their own

    def take(self, update: Update) -> None:
        """Weigh an update that the gate has let through, add it to the sum, forget its model."""
        alone = replace(self._cohort, updates=[update])
        score, parts = self._method.weighting.score(alone, self._sizes[update.client] / self._images)
        self._sum.add(score, update.model.params, update.model.buffers)
        np.maximum(self._counters, update.model.counters, out=self._counters)
        self._scores.append(score)
        self._parts.append(parts)
        self.updates.append(replace(update, model=self._cohort.model))

    def aggregate(self, state: State) -> Aggregate:
        """As `Method.aggregate` of all updates at once."""
        values = np.exp(np.array(self._scores) - self._sum.top) / self._sum.total
        parts = {name: np.array([one[name] for one in self._parts]) for name in self._parts[0]}
        weights = Weights(values, parts)
        average, buffers = self._sum.averages()
        about = (self._cohort.round, self._cohort.rounds, self._cohort.model, self.updates, self._cohort.population)
        folded = Folded(*about, average=average)
        params, server = self._method.server.step(folded, weights, state["server"])
        model = Model(params, buffers, self._counters, self._cohort.model.layout)
        coefficients = self._method.server.coefficients(folded, weights)
        return Aggregate(model, weights, coefficients, {"weighting": state["weighting"], "server": server})


@dataclass(frozen=True, eq=False)
class Folded(Cohort):
    """A cohort of which only the average is left."""

    average: Vector = field(default_factory=lambda: np.empty(0))

    def combine(self, coefficients: NDArray[np.float64], elsewhere: Sequence[Place] = ()) -> Vector:
        return self.average


def weighted_average(sent: Model, weights: Sequence[float], models: Iterable[Model]) -> Model:
    """The average of models that come one by one, for weights that are known before the first of them.

    FedDRAW's are, as soon as the classifier layers are there: a server can take these first and the bodies after.
    """
    sums, counters = RunningSum(len(sent.params), len(sent.buffers)), np.zeros_like(sent.counters)
    for weight, model in zip(weights, models, strict=True):
        if weight > 0:
            sums.add(math.log(weight), model.params, model.buffers)
        counters = np.maximum(counters, model.counters)
    params, buffers = sums.averages()
    return Model(params, buffers, counters, sent.layout)

"""FedDisco: size, less the discrepancy between a client's label mix and an even one. (Ye et al.,
ICML 2023)

w is proportional to max(0, p - a d + b). The mix is the count of each finding among the client's
images, scaled to sum to one; KL discrepancies are divided by their sum, as the authors do. Where
every term is zero or less their code stops; we weigh by size. a = b = 0 is FedAvg.

The authors' images have one label each, so every client has a mix. A client without any finding has
none here. Its images are all of one kind, so under every metric it gets the discrepancy of a client
with a single finding: the largest one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from feddraw.core import (
    LABELS,
    AfterFirstSum,
    ClientView,
    Column,
    Facts,
    Method,
    Needs,
    Parts,
    Score,
    State,
    Weighted,
)
from feddraw.core.schedules import Floats
from feddraw.errors import not_negative, one_of

Metric = Literal["kl", "l1", "l2", "cosine"]
DISCREPANCIES: tuple[Metric, ...] = ("kl", "l1", "l2", "cosine")


def discrepancy(counts: Floats, metric: Metric, total: float | None = None) -> Floats:
    """How far each row of label counts is from an even mix; `total` is the KL divergence of all, if
    not of these.
    """
    single = np.arange(counts.shape[1]) == 0
    counts = np.maximum(counts, 0)
    counts = np.where(counts.any(axis=1, keepdims=True), counts, single)
    mix = counts / counts.sum(axis=1, keepdims=True)
    even = 1 / mix.shape[1]
    if metric in ("l1", "l2"):
        return np.asarray(np.linalg.norm(mix - even, ord=int(metric[1]), axis=1))
    if metric == "cosine":
        return np.asarray(
            1 - mix.sum(axis=1) * even / (np.linalg.norm(mix, axis=1) * np.sqrt(even) + 1e-12)
        )
    divergence = (mix * np.log(np.maximum(mix, 1e-300) / even)).sum(axis=1)
    return np.asarray(divergence / max(divergence.sum() if total is None else total, 1e-12))


@dataclass(frozen=True)
class FedDiscoWeighting(AfterFirstSum):
    a: float = 0.5
    b: float = 0.1
    metric: Metric = "kl"

    needs = Needs(sizes=True, asks=(LABELS,))

    def contribute(self, client: ClientView, facts: Facts, place: int) -> Column:
        """The client's discrepancy, by whose sum that of each is divided."""
        return discrepancy(_label_counts(client), self.metric, total=1.0)

    def conclude(
        self, total: Column, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Column, Parts, State]:
        return total, {}, state

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        far = discrepancy(_label_counts(client), self.metric, total=float(facts.concluded[0]))[0]
        prior = float(facts.priors[place])
        weight = max(0.0, prior - self.a * float(far) + self.b)
        log_weight = math.log(weight) if weight else -math.inf
        return log_weight, {"prior": prior, "reputation": weight}

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        return -math.inf, math.log(facts.priors[place] + self.b)

    def parts_of(self, own_weights: Column, facts: Facts, places: Sequence[int]) -> Parts:
        largest = float(facts.priors.max() + self.b)
        return {"prior": facts.priors[list(places)], "reputation": own_weights * largest}


def _label_counts(client: ClientView) -> Floats:
    """(1, findings): the client's images with each finding."""
    return client.update.extra["labels"][None].astype(np.float64)


def feddisco(a: float = 0.5, b: float = 0.1, metric: Metric = "kl") -> Method:
    """Size minus the discrepancy of the label distribution."""
    one_of("metric", metric, DISCREPANCIES)
    return Method(Weighted(FedDiscoWeighting(not_negative("a", a), not_negative("b", b), metric)))

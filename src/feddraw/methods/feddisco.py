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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from feddraw.core import (
    TWO_SUMS,
    Cohort,
    Facts,
    Local,
    Method,
    Parts,
    Server,
    State,
    Weighting,
    Weights,
    normalize,
)
from feddraw.core.schedules import Floats, size_prior
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
class FedDiscoWeighting(Weighting):
    a: float = 0.5
    b: float = 0.1
    metric: Metric = "kl"

    asks = ("labels",)
    secure = TWO_SUMS

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        prior = size_prior(cohort.sizes)
        far = discrepancy(cohort.extra("labels").astype(np.float64), self.metric)
        scores = np.maximum(0, prior - self.a * far + self.b)
        return normalize(scores if scores.any() else prior, prior=prior, reputation=scores), state

    def first_sum(self, cohort: Cohort, facts: Facts, place: int) -> Floats:
        """The client's divergence, by whose sum that of each is divided."""
        return discrepancy(cohort.extra("labels").astype(np.float64), self.metric, total=1.0)

    def own_weight(self, cohort: Cohort, facts: Facts, place: int) -> float:
        far = discrepancy(
            cohort.extra("labels").astype(np.float64), self.metric, total=float(facts.told[0])
        )[0]
        return max(0.0, float(facts.priors[place] - self.a * far + self.b)) / float(
            facts.priors.max() + self.b
        )

    def own_limits(self, facts: Facts, place: int) -> tuple[float, float]:
        return 0.0, float((facts.priors[place] + self.b) / (facts.priors.max() + self.b))

    def parts_of(self, own: Floats, facts: Facts, places: Sequence[int]) -> Parts:
        return {
            "prior": facts.priors[list(places)],
            "reputation": own * (facts.priors.max() + self.b),
        }


def feddisco(a: float = 0.5, b: float = 0.1, metric: Metric = "kl") -> Method:
    """Size minus the discrepancy of the label distribution."""
    rule = FedDiscoWeighting(
        not_negative("a", a), not_negative("b", b), one_of("metric", metric, DISCREPANCIES)
    )
    return Method(Local(), rule, Server())

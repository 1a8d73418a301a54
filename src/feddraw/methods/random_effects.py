"""Random effects: weights move from size to equal as the clients' gradients at the sent model
differ more.

(DerSimonian and Laird 1986, with traces in place of variances; docs/heterogeneity.md has the
derivation.) Each client sends the mean g of some batch gradients, how many images N they cover, and
s², the variance of one image's gradient. With S² = sum N s² / sum N and v = N / S², Cochran's Q =
sum v |g - mean|² exceeds sum s²/S² - 1, which is its expectation if all clients have one mean, by
tau² (sum v - sum v² / sum v). With rho = max(0, tau²) / S², a client with n images counts by 1 /
(rho + 1/n): rho = 0 is FedAvg, rho = inf uniform averaging.

A client with fewer than two batches measures nothing and counts by the others' rho. Where fewer
than two clients have measured, the last rho holds, and 0 before the first. All that is needed are
sums over clients (`EffectSums`). Where clients label different findings, only the classifier's rows
of those that all of them label are compared; where there is no such finding, nothing is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from feddraw.core import (
    CLASSIFIER_GRADIENT_MEAN,
    GRADIENT_MEAN,
    GRADIENT_SPREAD,
    GRADIENT_VARIANCES,
    AfterFirstSum,
    ClientView,
    Cohort,
    Column,
    Extra,
    Facts,
    Layout,
    Measurement,
    Method,
    Needs,
    Parts,
    Score,
    State,
    Vector,
    Weighted,
    Weights,
    gram,
)
from feddraw.core.schedules import Floats, size_prior
from feddraw.errors import UserError, at_least, below_one, one_of

Layer = Literal["classifier", "all"]
Mode = Literal["train", "eval"]

LARGEST_RHO = 1e12  # rho that stands for infinity where it is sent as a number
# S² as a part of the gradients' mean square: below it rounding is all that is measured.
SMALLEST_VARIANCE = 1e-12


@dataclass(frozen=True)
class EffectSums:
    """Sums over the clients that have measured: a server that sees nothing else can weigh
    by them.
    """

    clients: float  # of 1
    images: float  # of N
    images_squared: float  # of N²
    gradient_square: float  # |sum of N g|²
    squares: float  # of N |g|²
    variances: float  # of s²
    weighted_variances: float  # of N s²

    @staticmethod
    def of(images: Floats, products: Floats, variances: Floats) -> EffectSums:
        """From each client's images and variance, and the scalar products of their mean
        gradients.
        """
        sums = (
            len(images),
            images.sum(),
            images @ images,
            images @ products @ images,
            images @ np.diag(products),
        )
        return EffectSums(*map(float, (*sums, variances.sum(), images @ variances)))


@dataclass(frozen=True)
class EffectsEstimate:
    """How much clients differ."""

    q: float  # Cochran's Q
    expected: float  # Q's expectation where all clients have one mean
    variance: float  # S², of one image's gradient
    excess: float  # tau² / S² before the cut at zero; tau² has no bias, the ratio that of 1 / S²

    @property
    def rho(self) -> float:
        return max(0.0, self.excess)

    @property
    def i_squared(self) -> float:
        """The part of Q that its expectation does not explain."""
        return max(0.0, 1 - self.expected / self.q) if self.q > 0 else 0.0


def estimate_effects(sums: EffectSums) -> EffectsEstimate | None:
    """None where fewer than two clients have measured, or one has all the images."""
    if sums.clients < 2:
        return None
    images_beside_one = sums.images - sums.images_squared / sums.images
    if images_beside_one <= 0:
        return None
    variance = max(sums.weighted_variances, SMALLEST_VARIANCE * sums.squares) / sums.images
    between = max(0.0, sums.squares - sums.gradient_square / sums.images)
    if not variance:  # all gradients are zero
        return EffectsEstimate(0.0, sums.clients - 1, 0.0, 0.0)
    q = between / variance
    expected = sums.variances / variance - sums.weighted_variances / variance / sums.images
    return EffectsEstimate(q, expected, variance, (q - expected) / images_beside_one)


def _contrasts_to_others(images: Floats) -> Floats:
    """One row per client: itself minus the mean of the others, weighted by their images."""
    others = np.tile(images, (len(images), 1)) * (1 - np.eye(len(images)))
    return np.asarray(np.eye(len(images)) - others / others.sum(axis=1, keepdims=True))


def squared_distances(images: Floats, products: Floats) -> Floats:
    """Of each client's mean gradient from that of the others."""
    contrasts = _contrasts_to_others(images)
    return np.asarray(np.einsum("ij,jk,ik->i", contrasts, products, contrasts))


def corrected_distances(images: Floats, products: Floats, variances: Floats) -> Floats:
    """Squared distances minus what sampling adds to them: estimates without bias, which may be
    below zero.
    """
    noise = _contrasts_to_others(images) ** 2 @ (variances / images)
    return np.asarray(squared_distances(images, products) - noise)


def distances_by_variance(images: Floats, products: Floats, variances: Floats) -> Floats:
    """The corrected ones as multiples of S², which is the unit of rho."""
    effects = estimate_effects(EffectSums.of(images, products, variances))
    if effects is None or not effects.variance:
        return np.zeros(len(images))
    return np.asarray(corrected_distances(images, products, variances) / effects.variance)


def weights_by_rho(sizes: Floats, rho: float) -> Floats:
    """1 / (rho + 1/n) as shares; the bits of FedAvg at 0 and of uniform averaging at infinity."""
    return size_prior(np.ones(len(sizes)) if math.isinf(rho) else sizes / (1.0 + rho * sizes))


@dataclass(frozen=True)
class RandomEffects(AfterFirstSum):
    measurement: Measurement = field(default_factory=Measurement)
    smoothing: float = 0.0
    rho: float = -1.0  # below zero: as measured
    layer: Layer = "classifier"

    contributes = "gradients"

    @property
    def gradient(self) -> Extra:
        """The mean gradient that clients send."""
        return GRADIENT_MEAN if self.layer == "all" else CLASSIFIER_GRADIENT_MEAN

    @property
    def needs(self) -> Needs:
        cost = "O(K d)" if self.layer == "all" else "O(K d) of one layer"
        asks = (self.gradient, GRADIENT_SPREAD, GRADIENT_VARIANCES)
        return Needs(sizes=True, asks=asks, cost=cost)

    def check(self, layout: Layout) -> None:
        layout.find("classifier")

    def broadcast(self, state: State) -> dict[str, Vector]:
        return self.measurement.as_broadcast()

    def contribute(self, client: ClientView, facts: Facts, place: int) -> Column:
        """The client's terms of `EffectSums`, images as a share of the most that are measured."""
        images, variance, gradient = self._compared(client, facts)
        if not images:
            return np.zeros(6 + len(gradient))
        share = images / self._most_images
        gradient = gradient.astype(np.float64)
        square = gradient @ gradient
        numbers = (1.0, share, share**2, share * square, variance, share * variance)
        return np.concatenate([numbers, share * gradient])

    def conclude(
        self, total: Column, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Column, Parts, State]:
        clients, images, images_squared, squares, variances, weighted_variances = total[:6]
        gradient = total[6:]
        most = self._most_images
        sums = EffectSums(
            clients=float(round(clients)),
            images=most * images,
            images_squared=most**2 * images_squared,
            gradient_square=most**2 * float(gradient @ gradient),
            squares=most * squares,
            variances=float(variances),
            weighted_variances=most * weighted_variances,
        )
        estimate = estimate_effects(sums)
        parts: dict[str, Floats | float | None] = {}
        if estimate is not None:
            state = self._with_estimate(estimate, state)
            parts = {"q": estimate.q, "q_expected": estimate.expected}
        measured_rho = max(0.0, state.get("excess", 0.0))
        parts["rho"] = measured_rho if state else None
        rho = measured_rho if self.rho < 0 else self.rho
        return np.array([min(rho, LARGEST_RHO)]), parts, state

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        return self._log_weight(facts, place), {"prior": float(facts.priors[place])}

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        log_weight = self._log_weight(facts, place)
        return log_weight, log_weight

    def parts_of(self, own_weights: Column, facts: Facts, places: Sequence[int]) -> Parts:
        return {"prior": facts.priors[list(places)]}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        """With each client's distance from the others, which only a server that sees all knows."""
        weights, state = super().weigh(cohort, state)
        return replace(weights, parts={**weights.parts, **self.distances(cohort)}), state

    def _log_weight(self, facts: Facts, place: int) -> float:
        rho = float(facts.concluded[0])
        size = float(facts.sizes[place])
        return 0.0 if rho >= LARGEST_RHO else math.log(size / (1 + rho * size))

    def distances(self, cohort: Cohort) -> Parts:
        """Images measured, the variance and the distance of each client that has measured."""
        facts = cohort.facts()
        compared = [self._compared(view, facts) for view in cohort.views()]
        images = np.array([images for images, _, _ in compared])
        variances = np.array([variance for _, variance, _ in compared])
        measured = images > 0
        parts: dict[str, Floats | float | None] = {"measured": images}
        if measured.sum() < 2:
            return parts
        means = np.stack([gradient for images_of, _, gradient in compared if images_of])
        products = gram(means, np.zeros(means.shape[1], np.float32))
        variance = np.full(len(images), np.nan)
        variance[measured] = variances[measured]
        distance = np.full(len(images), np.nan)
        distance[measured] = distances_by_variance(images[measured], products, variances[measured])
        return parts | {"variance": variance, "distance": distance}

    def _compared(self, client: ClientView, facts: Facts) -> tuple[float, float, Vector]:
        """Images measured, the variance and the mean gradient, in the parameters that all clients
        can be compared in; others are zero, and no images are measured if there are none.

        The body of the network learns what its client labels, so where clients label different
        findings it differs for that alone.
        """
        extra = client.update.extra
        images, variance = extra["gradient spread"].astype(np.float64).tolist()
        gradient = extra[self.gradient.name]
        if facts.labelled is None:
            return images, variance, gradient
        common = np.flatnonzero(facts.labelled.all(axis=0))
        rows = client.sent.layout.rows_within(self.layer)
        rows_compared = np.zeros_like(gradient)
        for output in common.tolist():
            rows_compared[rows[output]] = gradient[rows[output]]
        variance = float(extra["gradient variances"][common].astype(np.float64).sum())
        return images if len(common) else 0.0, variance, rows_compared

    def _with_estimate(self, estimate: EffectsEstimate, state: State) -> State:
        """The state after one more estimate."""
        before = state.get("excess", estimate.excess)
        excess = self.smoothing * before + (1 - self.smoothing) * estimate.excess
        return {"excess": float(excess)}

    @property
    def _most_images(self) -> float:
        return float(self.measurement.batches * self.measurement.batch_size)


def random_effects(
    batches: int = 16,
    batch_size: int = 16,
    every: int = 1,
    smoothing: float = 0.0,
    layer: Layer = "classifier",
    mode: Mode = "train",
    rho: float = -1.0,  # below zero: as measured
) -> Method:
    """Between size and equal weights: the more the clients' gradients differ, the more equal."""
    at_least("batches", batches, 2)
    at_least("batch_size", batch_size, 2)
    at_least("every", every, 1)
    one_of("layer", layer, ("classifier", "all"))
    one_of("mode", mode, ("train", "eval"))
    if math.isnan(rho):
        raise UserError(
            "rho must be a number: below zero to measure it, 0 for FedAvg, inf for equal weights"
        )
    measurement = Measurement(batches, batch_size, every, evaluation=mode == "eval")
    rule = RandomEffects(measurement, below_one("smoothing", smoothing), rho, layer)
    return Method(Weighted(rule))

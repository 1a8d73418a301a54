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
sums over clients (`EffectSums`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from feddraw import core
from feddraw.core import (
    TWO_SUMS,
    Cohort,
    Facts,
    Local,
    Measurement,
    Method,
    Parts,
    Server,
    State,
    Weighting,
    Weights,
)
from feddraw.core.model import Layout, Vector
from feddraw.core.schedules import Floats, size_prior
from feddraw.core.sums import gram
from feddraw.errors import UserError, at_least, below_one, one_of

Layer = Literal["classifier", "all"]
Mode = Literal["train", "eval"]

LARGEST_RHO = 1e12  # rho that stands for infinity where it is sent as a number
SMALLEST_VARIANCE = (
    1e-12  # S² as a part of the gradients' mean square: below it rounding is all that is measured
)


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
    """None where fewer than two clients have measured."""
    if sums.clients < 2:
        return None
    variance = max(sums.weighted_variances, SMALLEST_VARIANCE * sums.squares) / sums.images
    between = max(0.0, sums.squares - sums.gradient_square / sums.images)
    if not variance:  # all gradients are zero
        return EffectsEstimate(0.0, sums.clients - 1, 0.0, 0.0)
    q, expected = (
        between / variance,
        sums.variances / variance - sums.weighted_variances / variance / sums.images,
    )
    return EffectsEstimate(
        q, expected, variance, (q - expected) / (sums.images - sums.images_squared / sums.images)
    )


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
    found = estimate_effects(EffectSums.of(images, products, variances))
    if found is None or not found.variance:
        return np.zeros(len(images))
    return np.asarray(corrected_distances(images, products, variances) / found.variance)


def weights_by_rho(sizes: Floats, rho: float) -> Floats:
    """1 / (rho + 1/n) as shares; the bits of FedAvg at 0 and of uniform averaging at infinity."""
    return size_prior(np.ones(len(sizes)) if math.isinf(rho) else sizes / (1.0 + rho * sizes))


@dataclass(frozen=True)
class RandomEffects(Weighting):
    measurement: Measurement = field(default_factory=Measurement)
    smoothing: float = 0.0
    rho: float = -1.0

    asks: ClassVar[tuple[core.Asked, ...]] = ("classifier gradient mean", "gradient spread")
    cost = "O(K² d) of one layer"
    secure = TWO_SUMS

    def check(self, layout: Layout) -> None:
        layout.find("classifier")

    def broadcast(self, state: State) -> dict[str, Vector]:
        return self.measurement.as_broadcast()

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        images, variances = cohort.extra("gradient spread").astype(np.float64).T
        measured = images > 0
        means = cohort.extra(self.asks[0])[measured]
        products = gram(means, np.zeros(means.shape[1], np.float32))
        about = images[measured], products, variances[measured]
        found = estimate_effects(EffectSums.of(*about))
        parts: dict[str, Floats | float | None] = {
            "prior": size_prior(cohort.sizes),
            "measured": images,
        }
        if found is not None:
            parts |= {"q": found.q, "q_expected": found.expected}
            for name, values in (
                ("variance", about[2]),
                ("distance", distances_by_variance(*about)),
            ):
                parts[name] = column = np.full(
                    len(images), np.nan
                )  # not a number for those that have not measured
                column[measured] = values
            state = self._with_estimate(found, state)
        rho = max(0.0, state.get("excess", 0.0))
        parts["rho"] = rho if state else None
        values = weights_by_rho(cohort.sizes, rho if self.rho < 0 else self.rho)
        return Weights(values, parts), state

    def _with_estimate(self, found: EffectsEstimate, state: State) -> State:
        """The state after one more estimate."""
        return {
            "excess": (
                self.smoothing * state.get("excess", found.excess)
                + (1 - self.smoothing) * found.excess
            )
        }

    def first_sum(self, cohort: Cohort, facts: Facts, place: int) -> Floats:
        """A client's terms of `EffectSums`, its images as a part of the most that are measured."""
        images, variance = cohort.extra("gradient spread")[0].astype(np.float64)
        gradient = cohort.extra(self.asks[0])[0].astype(np.float64)
        part = images / self._most_images
        numbers = (1.0, part, part**2, part * (gradient @ gradient), variance, part * variance)
        return (
            np.concatenate([numbers, part * gradient])
            if images
            else np.zeros(len(numbers) + len(gradient))
        )

    def inform(
        self, total: Floats, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Floats, Parts, State]:
        count, images, squared, squares, variances, weighted = total[:6]
        gradient, most = total[6:], self._most_images
        sums = (
            most * images,
            most**2 * squared,
            most**2 * float(gradient @ gradient),
            most * squares,
        )
        found = estimate_effects(EffectSums(float(round(count)), *sums, variances, most * weighted))
        state = state if found is None else self._with_estimate(found, state)
        rho = max(0.0, state.get("excess", 0.0))
        parts: dict[str, Floats | float | None] = {"rho": rho if state else None}
        parts |= {} if found is None else {"q": found.q, "q_expected": found.expected}
        return np.array([rho if self.rho < 0 else min(self.rho, LARGEST_RHO)]), parts, state

    @property
    def _most_images(self) -> float:
        return float(self.measurement.batches * self.measurement.batch_size)

    def own_weight(self, cohort: Cohort, facts: Facts, place: int) -> float:
        return self.own_limits(facts, place)[0]

    def own_limits(self, facts: Facts, place: int) -> tuple[float, float]:
        values = weights_by_rho(facts.sizes, float(facts.told[0]))
        return float(values[place] / values.max()), float(values[place] / values.max())

    def parts_of(self, own: Floats, facts: Facts, places: Sequence[int]) -> Parts:
        return {"prior": facts.priors[list(places)]}


@dataclass(frozen=True)
class RandomEffectsOfAllLayers(RandomEffects):
    asks = ("gradient mean", "gradient spread")
    cost = "O(K² d)"


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
    for name, value, least in (
        ("batches", batches, 2),
        ("batch_size", batch_size, 2),
        ("every", every, 1),
    ):
        at_least(name, value, least)
    if math.isnan(rho):
        raise UserError(
            "rho must be a number: below zero to measure it, 0 for FedAvg, inf for equal weights"
        )
    measurement = Measurement(
        batches, batch_size, every, one_of("mode", mode, ("train", "eval")) == "eval"
    )
    rule = (
        RandomEffectsOfAllLayers
        if one_of("layer", layer, ("classifier", "all")) == "all"
        else RandomEffects
    )
    return Method(Local(), rule(measurement, below_one("smoothing", smoothing), rho), Server())

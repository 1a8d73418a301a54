"""How much sites differ, from batch gradients that all lie in one process: Q, each site's distance,
p and weights.

Everything follows from the scalar products between batches, so a group of parameters is one small
matrix, however large the network. Q is no chi-square: its p comes from permuting batches between
sites. Intervals come from a bootstrap of each site's batches. The formulas are those of
`methods.random_effects`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from feddraw.core.schedules import schedule
from feddraw.methods import random_effects as effects
from feddraw.results.ledger_table import LedgerTable

Floats = NDArray[np.float64]
SiteNumbers = tuple[
    Floats, Floats, Floats
]  # by site: images measured, scalar products of mean gradients, variances

RULES = ("fedavg", "random_effects", "feddraw", "uniform")


@dataclass(frozen=True, eq=False)
class BatchProducts:
    """Batch gradients of the sites that have measured, as scalar products, site after site."""

    counts: tuple[int, ...]  # batches of each site
    batch_size: int
    products: Mapping[str, Floats]  # by group of parameters, (batches, batches)

    def numbers(self, group: str, order: NDArray[np.intp] | None = None) -> SiteNumbers:
        """What the sites would send, with the batches in another order if one is given."""
        products = self.products[group]
        chosen = products if order is None else products[np.ix_(order, order)]
        counts = np.array(self.counts, np.float64)
        starts = np.cumsum([0, *self.counts[:-1]])
        within = np.add.reduceat(np.diag(chosen), starts)
        means = np.add.reduceat(np.add.reduceat(chosen, starts, axis=0), starts, axis=1) / np.outer(
            counts, counts
        )
        variances = self.batch_size * (within - counts * np.diag(means)) / (counts - 1)
        return self.batch_size * counts, means, np.maximum(variances, 0.0)


@dataclass(frozen=True)
class GroupHeterogeneity:
    """How much sites differ in some of the parameters."""

    name: str
    q: float
    expected: float  # of Q, if all sites have one mean
    i_squared: float
    rho: float
    p: float | None = (
        None  # share of random deals of the batches with so large a Q; None where it is not known
    )


@dataclass(frozen=True)
class SiteDistance:
    """How far a site is from the others, in the unit of rho; without a number where it has not
    measured.
    """

    site: str
    images: int
    measured: int
    distance: float | None = None
    low: float | None = None  # 95 % bootstrap interval
    high: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)  # by rule


@dataclass(frozen=True)
class Heterogeneity:
    """What was found at one model; numbers that do not exist are None."""

    round: int  # rounds of training before
    overall: GroupHeterogeneity
    sites: tuple[SiteDistance, ...]
    layers: tuple[GroupHeterogeneity, ...] = ()
    findings: tuple[GroupHeterogeneity, ...] = ()


def compare_sites(
    batches: BatchProducts, group: str, permutations: int, seed: int
) -> GroupHeterogeneity:
    """Q over all sites for one group of parameters, with its p."""
    found = _effects_of(batches.numbers(group))
    if found is None:
        return GroupHeterogeneity(group, 0.0, 0.0, 0.0, 0.0)
    whole = GroupHeterogeneity(group, found.q, found.expected, found.i_squared, found.rho)
    if not permutations:
        return whole
    rng, places = np.random.default_rng([seed, permutations]), np.arange(sum(batches.counts))
    dealt = (
        _effects_of(batches.numbers(group, rng.permutation(places))) for _ in range(permutations)
    )
    larger = sum(one is not None and one.q >= found.q * (1 - 1e-12) for one in dealt)
    return replace(whole, p=(1 + larger) / (1 + permutations))


def _effects_of(numbers: SiteNumbers) -> effects.EffectsEstimate | None:
    return effects.estimate_effects(effects.EffectSums.of(*numbers))


def distance_intervals(batches: BatchProducts, group: str, replicates: int, seed: int) -> Floats:
    """(sites, 3): each site's distance and the ends of its 95 % interval.

    In a resample the true distance is the one between the measured means, so its deviations from
    that are subtracted from the estimate (the basic bootstrap); quantiles of the resamples
    themselves would count sampling noise twice.
    """
    images, products, variances = batches.numbers(group)
    found = effects.distances_by_variance(images, products, variances)
    whole = _effects_of((images, products, variances))
    if not replicates or whole is None or not whole.variance:
        return np.stack([found, np.full_like(found, np.nan), np.full_like(found, np.nan)], axis=1)
    between = effects.squared_distances(images, products) / whole.variance
    rng, ends = np.random.default_rng([seed, replicates]), np.cumsum([0, *batches.counts])
    few = np.array(batches.counts) / (
        np.array(batches.counts) - 1
    )  # resamples of few batches vary too little
    drawn = np.empty((replicates, len(images)))
    for row in drawn:
        order = np.concatenate([rng.integers(a, b, b - a) for a, b in pairwise(ends.tolist())])
        _, moved, spreads = batches.numbers(group, order)
        variance = images @ (few * spreads) / images.sum() or whole.variance
        row[:] = effects.corrected_distances(images, moved, spreads) / variance - between
    drawn *= np.sqrt(few)
    high, low = (found - np.quantile(drawn, share, axis=0) for share in (0.025, 0.975))
    return np.stack([found, low, high], axis=1)


def site_weights_by_rule(sizes: Sequence[float], rho: float, rounds: int) -> dict[str, list[float]]:
    """Beside each other: FedDRAW's are the mean over its rounds, for clients that are fully
    similar.
    """
    counts = np.asarray(sizes, np.float64)
    drawn = [
        [client["weight"] for client in row["clients"]]
        for row in schedule(rounds=rounds, sizes=list(sizes))
    ]
    fedavg, random_effects, uniform = (
        effects.weights_by_rho(counts, one) for one in (0.0, rho, float("inf"))
    )
    columns = (fedavg, random_effects, np.mean(drawn, axis=0), uniform)
    return {rule: column.tolist() for rule, column in zip(RULES, columns, strict=True)}


def site_distances_in_ledger(ledger: LedgerTable, rounds: int) -> list[Heterogeneity]:
    """Of a run whose method has measured: one for each round with a measurement, without intervals
    and p.
    """
    found = []
    for t in range(len(ledger.status)):
        there = np.isfinite(ledger["q"][t])
        if not there.any():
            continue
        q, expected, rho = (float(ledger[name][t, there][0]) for name in ("q", "q_expected", "rho"))
        sizes = np.where(there, ledger["size"][t], 0.0)
        weights = site_weights_by_rule(sizes[there].tolist(), rho, rounds)
        sites = tuple(
            SiteDistance(
                ledger.clients[place],
                int(sizes[place]),
                int(ledger["measured"][t, place]),
                number_or_none(ledger["distance"][t, place]),
                weights={rule: column[number] for rule, column in weights.items()},
            )
            for number, place in enumerate(np.flatnonzero(there).tolist())
        )
        overall = GroupHeterogeneity(
            "measured", q, expected, max(0.0, 1 - expected / q) if q else 0.0, rho
        )
        found.append(Heterogeneity(t, overall, sites))
    return found


def number_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def site_distances_in_words(group: GroupHeterogeneity) -> str:
    """Q in a sentence."""
    said = f"Q = {group.q:.1f}; {group.expected:.1f} is expected if the sites are alike"
    p = "" if group.p is None else f", p = {group.p:.3g} by permutation"
    share = f"I² = {100 * group.i_squared:.0f} %"
    rho = f"rho = {group.rho:.3g}" + (
        f", 1/rho = {1 / group.rho:,.0f} images" if group.rho > 0 else ""
    )
    return f"{said}{p}; {share}, {rho}"

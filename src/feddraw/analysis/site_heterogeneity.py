"""How much sites differ, from batch gradients that all lie in one process: Q, each site's distance,
p and weights.

Everything follows from the scalar products between batches, so a group of parameters is one small
matrix, however large the network. Q is no chi-square: its p comes from permuting batches between
sites. Intervals come from a bootstrap of each site's batches. The formulas are those of
`methods.random_effects`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.statistics import holm
from feddraw.core.schedules import schedule
from feddraw.methods import random_effects as effects
from feddraw.results.ledger_table import LedgerTable
from feddraw.system.file_writing import finite_or_none

Floats = NDArray[np.float64]
# By site: images measured, scalar products of mean gradients, variances.
SiteNumbers = tuple[Floats, Floats, Floats]

TOO_FEW_TO_RESAMPLE = 2  # batches of a site
RULES = ("fedavg", "random_effects", "feddraw", "uniform")
# of the ledger: what a measurement of the sites' differences fills
MEASURED_COLUMNS = ("size", "measured", "q", "q_expected", "rho")


@dataclass(frozen=True, eq=False)
class BatchProducts:
    """Batch gradients of the sites that have measured, as scalar products, site after site."""

    counts: tuple[int, ...]  # batches of each site
    batch_size: int
    products: Mapping[str, Floats]  # by group of parameters, (batches, batches)
    # Of groups that not all sites are compared in (findings that some do not label): the batches of
    # each site that is.
    counts_of_some: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def counts_in(self, group: str) -> tuple[int, ...]:
        """Batches of each site that is compared in a group."""
        return self.counts_of_some.get(group, self.counts)

    def numbers(self, group: str, order: NDArray[np.intp] | None = None) -> SiteNumbers:
        """What the sites would send, with the batches in another order if one is given."""
        products = self.products[group]
        if order is not None:
            products = products[np.ix_(order, order)]
        counts = np.array(self.counts_in(group), np.float64)
        starts = np.cumsum([0, *self.counts_in(group)[:-1]])
        within = np.add.reduceat(np.diag(products), starts)
        sums = np.add.reduceat(np.add.reduceat(products, starts, axis=0), starts, axis=1)
        means = sums / np.outer(counts, counts)
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
    p: float | None = None  # share of random permutations with so large a Q; None: not known
    holm_p: float | None = None  # the same, corrected for all groups that are tested beside it
    least_p: float | None = None  # p of sites as different as can be, with so many batches
    sites: int | None = None  # that were compared: for a finding, those that label it


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
    rho_low: float | None = None  # 95 % bootstrap interval of the overall rho
    rho_high: float | None = None


def compare_sites(
    batches: BatchProducts, group: str, permutations: int, seed: int
) -> GroupHeterogeneity:
    """Q over all sites for one group of parameters, with its p."""
    observed = _effects_of(batches.numbers(group))
    counts = batches.counts_in(group)
    if observed is None:
        return GroupHeterogeneity(
            group, q=0.0, expected=0.0, i_squared=0.0, rho=0.0, sites=len(counts)
        )
    p = least_p = None
    if permutations:
        rng = np.random.default_rng([seed, permutations])
        places = np.arange(sum(counts))
        limit = observed.q * (1 - 1e-12)  # equal but for rounding is as large
        as_large = 0
        for _ in range(permutations):
            permuted = _effects_of(batches.numbers(group, rng.permutation(places)))
            as_large += permuted is not None and permuted.q >= limit
        p = (1 + as_large) / (1 + permutations)
        least_p = max(1 / (1 + permutations), share_of_equal_divisions(counts))
    return GroupHeterogeneity(
        name=group,
        q=observed.q,
        expected=observed.expected,
        i_squared=observed.i_squared,
        rho=observed.rho,
        p=p,
        least_p=least_p,
        sites=len(counts),
    )


def share_of_equal_divisions(counts: Sequence[int]) -> float:
    """How often a random division of all batches among sites, so many to each, is the same as the
    one that was found, but for which of the sites with equally many has which.
    """
    orders_within_sites = math.prod(math.factorial(count) for count in counts)
    sites_exchanged = math.prod(math.factorial(alike) for alike in Counter(counts).values())
    return orders_within_sites * sites_exchanged / math.factorial(sum(counts))


def compare_sites_by_group(
    batches: BatchProducts, groups: Iterable[str], permutations: int, seed: int
) -> list[GroupHeterogeneity]:
    """Q for several groups of parameters; their p also corrected for their number."""
    compared = [compare_sites(batches, group, permutations, seed) for group in groups]
    tested = [group.p for group in compared if group.p is not None]
    corrected = iter(holm(tested).tolist())
    return [
        group if group.p is None else replace(group, holm_p=next(corrected)) for group in compared
    ]


def _effects_of(numbers: SiteNumbers) -> effects.EffectsEstimate | None:
    return effects.estimate_effects(effects.EffectSums.of(*numbers))


def distance_intervals(batches: BatchProducts, group: str, replicates: int, seed: int) -> Floats:
    """(sites, 3): each site's distance and the ends of its 95 % interval.

    In a resample the true distance is the one between the measured means, so its deviations from
    that are subtracted from the estimate (the basic bootstrap); quantiles of the resamples
    themselves would count sampling noise twice. A site with two batches has no interval: all that
    its resamples can be is one batch, the other, or both.
    """
    images, products, variances = batches.numbers(group)
    distances = effects.distances_by_variance(images, products, variances)
    overall = _effects_of((images, products, variances))
    if not replicates or overall is None or not overall.variance:
        unknown = np.full_like(distances, np.nan)
        return np.stack([distances, unknown, unknown], axis=1)
    between_means = effects.squared_distances(images, products) / overall.variance
    counts = np.array(batches.counts)
    correction = counts / (counts - 1)  # resamples of few batches vary too little
    rng = np.random.default_rng([seed, replicates])
    bounds = list(pairwise(np.cumsum([0, *batches.counts]).tolist()))
    deviations = np.empty((replicates, len(images)))
    for deviation in deviations:
        order = np.concatenate([rng.integers(start, end, end - start) for start, end in bounds])
        _, resampled, spreads = batches.numbers(group, order)
        variance = images @ (correction * spreads) / images.sum() or overall.variance
        corrected = effects.corrected_distances(images, resampled, spreads)
        deviation[:] = corrected / variance - between_means
    deviations *= np.sqrt(correction)
    low = distances - np.quantile(deviations, 0.975, axis=0)
    high = distances - np.quantile(deviations, 0.025, axis=0)
    low[counts <= TOO_FEW_TO_RESAMPLE] = np.nan
    high[counts <= TOO_FEW_TO_RESAMPLE] = np.nan
    return np.stack([distances, low, high], axis=1)


def rho_interval(
    batches: BatchProducts, group: str, replicates: int, seed: int
) -> tuple[float, float] | None:
    """The ends of rho's 95 % interval, by the basic bootstrap as for distances, cut at zero.

    None where there are no replicates, or nothing varies.
    """
    images, products, variances = batches.numbers(group)
    estimate = _effects_of((images, products, variances))
    if not replicates or estimate is None or not estimate.variance:
        return None
    # In a resample the sites' true means are the measured ones: nothing is subtracted from their Q.
    between_means = estimate.q / (images.sum() - images @ images / images.sum())
    counts = np.array(batches.counts)
    correction = counts / (counts - 1)  # resamples of few batches vary too little
    rng = np.random.default_rng([seed, replicates, len(counts)])
    bounds = list(pairwise(np.cumsum([0, *batches.counts]).tolist()))
    deviations = []
    for _ in range(replicates):
        order = np.concatenate([rng.integers(start, end, end - start) for start, end in bounds])
        _, resampled, spreads = batches.numbers(group, order)
        of_resample = _effects_of((images, resampled, spreads))
        if of_resample is None:
            continue
        variance_ratio = images @ spreads / (images @ (correction * spreads) or 1.0)
        deviations.append(of_resample.excess * variance_ratio - between_means)
    widened = np.array(deviations) * math.sqrt(images @ correction / images.sum())
    low, high = estimate.excess - np.quantile(widened, [0.975, 0.025])
    return max(0.0, float(low)), max(0.0, float(high))


def site_weights_by_rule(sizes: Sequence[float], rho: float, rounds: int) -> dict[str, list[float]]:
    """Beside each other: FedDRAW's are the mean over its rounds, for clients that are fully
    similar.
    """
    counts = np.asarray(sizes, np.float64)
    feddraw = [
        [client["weight"] for client in row["clients"]]
        for row in schedule(rounds=rounds, sizes=list(sizes))
    ]
    weights = {
        "fedavg": effects.weights_by_rho(counts, 0.0),
        "random_effects": effects.weights_by_rho(counts, rho),
        "feddraw": np.mean(feddraw, axis=0),
        "uniform": effects.weights_by_rho(counts, math.inf),
    }
    return {rule: weights[rule].tolist() for rule in RULES}


def site_distances_in_ledger(ledger: LedgerTable, rounds: int) -> list[Heterogeneity]:
    """Of a run whose method has measured: one for each round with a measurement, without intervals
    and p.
    """
    by_round = []
    for t in range(len(ledger.status)):
        columns = [ledger[name][t] for name in MEASURED_COLUMNS]
        measured = np.flatnonzero(np.isfinite(columns).all(axis=0)).tolist()
        if not measured:
            continue
        first = measured[0]  # what all sites have in common stands in each one's row
        q = float(ledger["q"][t, first])
        expected = float(ledger["q_expected"][t, first])
        rho = float(ledger["rho"][t, first])
        weights = site_weights_by_rule(ledger["size"][t, measured].tolist(), rho, rounds)
        sites = []
        for number, place in enumerate(measured):
            sites.append(
                SiteDistance(
                    site=ledger.clients[place],
                    images=int(ledger["size"][t, place]),
                    measured=int(ledger["measured"][t, place]),
                    distance=finite_or_none(ledger["distance"][t, place]),
                    weights={rule: by_site[number] for rule, by_site in weights.items()},
                )
            )
        overall = GroupHeterogeneity(
            name="measured",
            q=q,
            expected=expected,
            i_squared=max(0.0, 1 - expected / q) if q else 0.0,
            rho=rho,
        )
        by_round.append(Heterogeneity(t, overall, tuple(sites)))
    return by_round


def site_distances_in_words(group: GroupHeterogeneity) -> str:
    """Q in a sentence."""
    words = f"Q = {group.q:.1f}; {group.expected:.1f} is expected if the sites are alike"
    if group.p is not None:
        words += f", p = {group.p:.3g} by permutation"
    words += f"; I² = {100 * group.i_squared:.0f} %, rho = {group.rho:.3g}"
    if group.rho > 0:
        words += f", 1/rho = {1 / group.rho:,.0f} images"
    return words


# ------------------------------------------------------------------------------------------ verdict

SIGNIFICANT = 0.05
TOO_FEW = "too few batches"
# Rows of docs/which-weights.md, as they begin, and what they say to choose.
WELL_ABOVE_ONE = ("ρ n̄ well above 1", "uniform")
BELOW_ONE = ("ρ n̄ below 1", "either, or fedavg for few rounds or many sites")
NOT_DECIDED = ("you do not want to choose", "random_effects")


@dataclass(frozen=True)
class HeterogeneityVerdict:
    """What a measurement means for the choice of weights."""

    rho_n: float  # rho times the mean number of images per site
    low: float | None  # 95 % interval
    high: float | None
    # "sites differ", "no difference shown", "too few batches" where p cannot be small enough, or
    # "not tested" where there is neither p nor interval.
    difference: str
    reason: str  # what it rests on
    row: str  # of docs/which-weights.md
    choose: str
    not_measured: Mapping[str, str]  # by site, why

    def in_sentences(self) -> list[str]:
        words = f"rho × mean images per site (ρ n̄) = {self.rho_n:.3g}"
        if self.low is not None and self.high is not None:
            words += f", 95 % interval of its size {self.low:.3g} to {self.high:.3g}"
        sentences = [
            f"{self.difference.capitalize()}: {self.reason}.",
            f"{words}.",
            f"docs/which-weights.md, row “{self.row}”: {self.choose}.",
        ]
        if self.difference == "not tested":
            sentences.append(
                "A run's ledger has no batches to permute: for p and intervals give the experiment"
                " instead of the run."
            )
        elif self.difference == TOO_FEW:
            sentences.append(
                "Measure more batches: a higher --batches where sites have the images, else a lower"
                " --batch-size; and at least 19 permutations."
            )
        elif self.row == NOT_DECIDED[0]:
            sentences.append(
                "The interval does not lie on one side of 1: more batches make it narrower (a"
                " higher --batches where sites have the images, else a lower --batch-size)."
            )
        sentences += [f"{site} was not measured: {why}." for site, why in self.not_measured.items()]
        return sentences


def verdict_on(measured: Heterogeneity, batch_size: int | None = None) -> HeterogeneityVerdict:
    """What to conclude; `batch_size` says what a site without a measurement would have needed."""
    mean_images = float(np.mean([site.images for site in measured.sites]))
    low = None if measured.rho_low is None else mean_images * measured.rho_low
    high = None if measured.rho_high is None else mean_images * measured.rho_high
    difference, reason = _difference_shown(measured.overall, low)
    if difference == TOO_FEW:
        row, choose = NOT_DECIDED
    elif low is not None and low > 1 and difference == "sites differ":
        row, choose = WELL_ABOVE_ONE
    elif high is not None and high < 1:
        row, choose = BELOW_ONE
    else:
        row, choose = NOT_DECIDED
    return HeterogeneityVerdict(
        rho_n=mean_images * measured.overall.rho,
        low=low,
        high=high,
        difference=difference,
        reason=reason,
        row=row,
        choose=choose,
        not_measured={
            site.site: _why_not_measured(site, batch_size)
            for site in measured.sites
            if not site.measured
        },
    )


def _difference_shown(group: GroupHeterogeneity, low: float | None) -> tuple[str, str]:
    """What was shown, and by what: by the permutation test, or without one by whether the interval
    is above zero.
    """
    if group.p is None:
        if low is None:
            return "not tested", "there is neither p nor an interval"
        where = "lies above 0" if low > 0 else "reaches down to 0"
        differ = low > 0
        reason = f"without permutations the interval of ρ n̄ decides, and it {where}"
    elif group.least_p is not None and group.least_p > SIGNIFICANT:
        least = f"{group.least_p:.2g} with so few batches or permutations"
        return TOO_FEW, f"p cannot be below {least}, so nothing can be shown"
    else:
        differ = group.p <= SIGNIFICANT
        side = "at most" if differ else "above"
        reason = f"p = {group.p:.3g} by permutation, {side} {SIGNIFICANT}, and this decides"
    return "sites differ" if differ else "no difference shown", reason


def _why_not_measured(site: SiteDistance, batch_size: int | None) -> str:
    if batch_size is None:
        return f"its {site.images:,} images do not fill two batches"
    needed = 2 * batch_size
    if site.images < needed:
        return f"two batches need {needed} images, and it has {site.images:,}; lower --batch-size"
    return (
        f"it has {site.images:,} images, but not two batches of {batch_size} labelled images with"
        " no patient in both; lower --batch-size"
    )

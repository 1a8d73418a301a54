"""From contributions in each training to intervals over patients and trainings, to ranks, and to
which sites can be told apart.

The variance of a mean contribution has three parts: test patients (the bootstrap's replicates of
the mean, in which all trainings draw the same patients), trainings (the spread between seeds), and,
where Shapley values are sampled, the permutations, which are in the spread between seeds already if
there are several. The interval is Student's with Satterthwaite's degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from feddraw.analysis.statistics import holm
from feddraw.text import join_names

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TrainedContributions:
    """What each site contributed in one training, by one estimator and on one group of patients."""

    values: (
        Floats  # (sites, 1 + replicates): the estimate, then the same on other draws of patients
    )
    pairs: Floats | None = None  # (pairs, sites): estimates by pair of permutations; None: exact
    tested: str = ""  # a hash of what was tested: trainings with the same are paired by patient


@dataclass(frozen=True)
class Estimate:
    """A contribution, or a difference of two, over trainings."""

    value: float
    low: float  # 95 % interval; NaN where nothing says how uncertain it is
    high: float
    p: float
    over_patients: float  # standard error by test patients alone
    over_trainings: float  # by trainings alone; NaN for one training
    over_permutations: float = 0.0  # of one training, by the sampling of permutations


@dataclass(frozen=True, eq=False)
class SiteContributions:
    """All sites' contributions, and which can be told apart."""

    sites: tuple[str, ...]
    estimates: tuple[Estimate, ...]  # by site
    ranks: NDArray[np.intp]  # (trainings, sites): 1 contributes most
    trainings: int
    holm_p: dict[tuple[int, int], float]  # of the difference of two sites, corrected for all pairs

    def alike(self, first: int, second: int) -> bool:
        """Whether two sites are not distinguishable at 5 %."""
        p = self.holm_p[min(first, second), max(first, second)]
        return not p < 0.05

    @property
    def agreement(self) -> float:
        """Kendall's W of the ranks in all trainings: 1 where they are the same, about 0 where they
        have nothing in common; NaN for one training.
        """
        trainings, sites = self.ranks.shape
        if trainings < 2 or sites < 2:
            return math.nan
        sums = self.ranks.sum(axis=0)
        spread = float(((sums - sums.mean()) ** 2).sum())
        return float(12 * spread / (trainings**2 * (sites**3 - sites)))


def combine_trainings(
    sites: Sequence[str], trainings: Sequence[TrainedContributions]
) -> SiteContributions:
    """Contributions over trainings of the same sites."""
    count = len(sites)
    identity = np.eye(count)
    estimates = [_estimate(trainings, row) for row in identity]
    pairs = list(combinations(range(count), 2))
    differences = [_estimate(trainings, identity[a] - identity[b]) for a, b in pairs]
    p = [1.0 if math.isnan(difference.p) else difference.p for difference in differences]
    corrected = dict(zip(pairs, holm(p).tolist(), strict=True)) if pairs else {}
    values = np.stack([training.values[:, 0] for training in trainings])
    # an undefined contribution is the last
    ranked = np.where(np.isnan(values), np.inf, -values)
    ranks = np.stack([stats.rankdata(row, method="min").astype(np.intp) for row in ranked])
    return SiteContributions(tuple(sites), tuple(estimates), ranks, len(trainings), corrected)


def _estimate(trainings: Sequence[TrainedContributions], of_sites: Floats) -> Estimate:
    """Of a sum of the sites' contributions, each times a number."""
    count = len(trainings)
    rows = [of_sites @ training.values for training in trainings]
    values = np.array([row[0] for row in rows])
    estimate = float(values.mean())
    patients = _variance_over_patients(trainings, rows)
    seeds = float(values.var(ddof=1)) / count if count > 1 else math.nan
    sampling = [_sampling_variance(training, of_sites) for training in trainings]
    permutations = sum(variance for variance, _ in sampling) / count**2
    if count == 1:
        parts = [(patients, math.inf), (permutations, sampling[0][1])]
    elif _paired_by_patient(trainings):
        parts = [(patients, math.inf), (max(seeds, permutations), count - 1)]
    else:  # other patients in each training: its spread is in that between trainings already
        parts = [(max(seeds, patients), count - 1)]
    low, high, p = _students_interval(estimate, parts)
    return Estimate(
        value=estimate,
        low=low,
        high=high,
        p=p,
        over_patients=math.sqrt(patients),
        over_trainings=math.sqrt(seeds),
        over_permutations=math.sqrt(permutations),
    )


def _paired_by_patient(trainings: Sequence[TrainedContributions]) -> bool:
    tests = {training.tested for training in trainings}
    return len(tests) == 1 and len({training.values.shape[1] for training in trainings}) == 1


def _variance_over_patients(
    trainings: Sequence[TrainedContributions], rows: Sequence[Floats]
) -> float:
    if _paired_by_patient(trainings):
        return _variance(np.mean(rows, axis=0)[1:])
    return float(sum(_variance(row[1:]) for row in rows)) / len(rows) ** 2


def _variance(replicates: Floats) -> float:
    """Replicates without a value are left out."""
    defined = replicates[np.isfinite(replicates)]
    return float(defined.var(ddof=1)) if len(defined) > 1 else math.nan


def _sampling_variance(training: TrainedContributions, of_sites: Floats) -> tuple[float, float]:
    """Of a mean over pairs of permutations, and its degrees of freedom."""
    if training.pairs is None:
        return 0.0, math.inf
    by_pair = training.pairs @ of_sites
    return float(by_pair.var(ddof=1)) / len(by_pair), len(by_pair) - 1


def _students_interval(
    estimate: float, parts: Sequence[tuple[float, float]]
) -> tuple[float, float, float]:
    """Ends of the 95 % interval and p of an estimate whose variance has these parts, each with its
    degrees of freedom.
    """
    variance = sum(part for part, _ in parts)
    if not math.isfinite(estimate) or not math.isfinite(variance):
        return math.nan, math.nan, math.nan
    if variance == 0:
        return estimate, estimate, 1.0 if estimate == 0 else 0.0
    curvature = sum(part**2 / freedom for part, freedom in parts)
    freedom = variance**2 / curvature if curvature else math.inf
    error = math.sqrt(variance)
    half = float(stats.t.ppf(0.975, freedom)) * error
    p = 2 * float(stats.t.sf(abs(estimate) / error, freedom))
    return estimate - half, estimate + half, p


def alike_in_words(contributions: SiteContributions) -> list[str]:
    """A sentence for each group of sites, next to one another in order of contribution, of whom no
    two can be told apart.
    """
    defined = [
        site
        for site, estimate in enumerate(contributions.estimates)
        if math.isfinite(estimate.value)
    ]
    order = sorted(defined, key=lambda site: -contributions.estimates[site].value)
    sentences = []
    reached = 0  # where the last group ends
    for start in range(len(order)):
        end = start + 1
        while end < len(order) and all(
            contributions.alike(order[end], other) for other in order[start:end]
        ):
            end += 1
        if end > max(reached, start + 1):
            names = [contributions.sites[site] for site in order[start:end]]
            if len(names) == len(contributions.sites) > 2:
                return [f"No two of the {len(names)} sites are distinguishable."]
            sentences.append(f"{join_names(names)} are not distinguishable.")
        reached = max(reached, end)
    return sentences

"""A gate on label counts: by size where the sites' labels look alike, equal weights where they do
not.

Donahue and Kleinberg (arXiv 2010.00753) ask when a site gains from a federation of sites that
differ; this is the simplest rule that answers by what the sites know before they train. For every
finding the counts of images with and without it form a table with a row for each site. Pearson's
statistic of the table, added up over the findings, is compared with its chi-square distribution.

Images of one patient and findings of one image are not independent, so the statistic is too large
for its distribution and the gate closes too easily: it is a rule of the study
studies/work-weights-similarity.md, and no test. The server needs three sums over the sites only.

    feddraw run --method studies.label_gate:label_gate
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

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
from feddraw.errors import below_one


def pearson_statistic(
    images: float, positives: Column, squares: Column, sites: int
) -> tuple[float, int]:
    """The statistic over all findings and its degrees of freedom.

    From sums over the sites: of images n, of images with each finding x, and of x² / n. A finding
    that all images or none have says nothing.
    """
    prevalence = positives / images
    variance = prevalence * (1 - prevalence)
    both = variance > 0
    between = squares - positives**2 / images
    statistic = float((between[both] / variance[both]).sum())
    return statistic, int(both.sum()) * (sites - 1)


@dataclass(frozen=True)
class LabelGate(AfterFirstSum):
    level: float = 0.05

    needs = Needs(sizes=True, asks=(LABELS,))

    def contribute(self, client: ClientView, facts: Facts, place: int) -> Column:
        positives = client.update.extra["labels"].astype(np.float64)
        size = float(facts.sizes[place])
        return np.concatenate([[size], positives, positives**2 / size])

    def conclude(
        self, total: Column, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Column, Parts, State]:
        positives, squares = np.split(total[1:], 2)
        statistic, freedom = pearson_statistic(float(total[0]), positives, squares, len(places))
        differ = freedom > 0 and chi2.sf(statistic, freedom) < self.level
        return np.array([float(differ)]), {"q": statistic, "q_expected": float(freedom)}, state

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        return self._log_weight(facts, place), {"prior": float(facts.priors[place])}

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        log_weight = self._log_weight(facts, place)
        return log_weight, log_weight

    def parts_of(self, own: Column, facts: Facts, places: Sequence[int]) -> Parts:
        return {"prior": facts.priors[list(places)]}

    def _log_weight(self, facts: Facts, place: int) -> float:
        differ = bool(facts.concluded[0])
        return 0.0 if differ else math.log(facts.sizes[place])


def label_gate(level: float = 0.05) -> Method:
    """Equal weights where a chi-square test finds the sites' labels different, else by size."""
    return Method(Weighted(LabelGate(below_one("level", level))))

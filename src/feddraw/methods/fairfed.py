"""FairFed: a client whose gap between two groups of patients is unlike the global one loses weight.

(Ezzeldin et al., AAAI 2023.) The gap of a client is its difference in sensitivity between the
groups, averaged over findings, of the sent model; weights start at p and move by -beta (Delta -
mean Delta), Delta = |global gap - own gap|. Where a client has no gap, because it lacks a group or
the data know of none, Delta is |its accuracy - mean accuracy|. beta = 0 is FedAvg. For the
threshold of a call see `training.client.group_counts`.

The paper has everybody in every round. We remember what a client's weight has become as a multiple
of its share, and apply it to its share among those present: with everybody there that is the
paper's rule, and a client's first weight does not depend on who came before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import (
    GROUP_COUNTS,
    GROUPS,
    Cohort,
    Method,
    Needs,
    State,
    Weighted,
    Weighting,
    Weights,
    normalize,
    of_present,
    with_present,
)
from feddraw.core.schedules import Floats, size_prior
from feddraw.errors import not_negative


def sensitivity_gap(counts: Floats) -> float:
    """Sensitivity in group 1 less that in group 0, over the findings that both groups have.

    Not a number where there is no such finding.
    """
    first, second, found_first, found_second = counts[:-2].reshape(len(GROUP_COUNTS), -1)
    both = (first > 0) & (second > 0)
    if not both.any():
        return np.nan
    gaps = found_second[both] / second[both] - found_first[both] / first[both]
    return float(gaps.mean())


@dataclass(frozen=True)
class FairFedWeighting(Weighting):
    beta: float = 1.0

    needs = Needs(sizes=True, asks=(GROUPS,))

    def init(self) -> State:
        return {"multiple": {}}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        prior = size_prior(cohort.sizes)
        counts = cohort.extra("groups").astype(np.float64)
        accuracy = counts[:, -1] / counts[:, -2]
        global_gap = sensitivity_gap(counts.sum(axis=0))
        away = np.abs(np.array([sensitivity_gap(row) for row in counts]) - global_gap)
        away = np.where(np.isnan(away), np.abs(accuracy - accuracy.mean()), away)
        scores = prior * of_present(state["multiple"], cohort, 1.0)
        scores -= self.beta * (away - away.mean())
        kept = np.maximum(0, scores)
        multiples = with_present(state["multiple"], cohort, (scores / prior).tolist())
        weights = normalize(kept if kept.any() else prior, prior=prior, reputation=scores)
        return weights, {"multiple": multiples}


def fairfed(beta: float = 1.0) -> Method:
    """Size, corrected by how groups of patients fare."""
    return Method(Weighted(FairFedWeighting(not_negative("beta", beta))))

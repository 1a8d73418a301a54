"""ShapFed: a client counts by how its classifier moves with the common one, class by class. (Tastan
et al., IJCAI 2024)

For each class, the cosine of the client's move of its row (and bias) to the weighted sum of all
clients' moves, by the weights of before, equal at first. The mean over classes is smoothed, gamma
<- momentum · gamma + (1 - momentum) · mean, and weights are proportional to gamma. The authors'
name for it is a class-specific Shapley value; it is no Shapley value of a game, and no coalitions
are formed. Their second part, clients that mix the common model with their own, is not part of it.

Their code divides by a sum that can be zero or negative; we take a negative gamma for zero, and
equal weights where nothing is left. Gamma is remembered by client: in a round without a client its
own stays as it is, and in a client's first round it stands for nothing before. The move that it is
compared with then counts it with the mean weight of those who were known. A class that a client
does not label is left out of its mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import (
    Cohort,
    Column,
    Layout,
    Method,
    Needs,
    State,
    Weighted,
    Weighting,
    Weights,
    of_present,
    with_present,
)
from feddraw.core.schedules import Floats, cosine
from feddraw.errors import below_one


@dataclass(frozen=True)
class ByClassContribution(Weighting):
    momentum: float = 0.9

    needs = Needs(layers="classifier", cost="O(K d) of one layer")

    def check(self, layout: Layout) -> None:
        layout.find("classifier")

    def init(self) -> State:
        return {"contribution": {}}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        before = of_present(state["contribution"], cohort)
        similarity = class_similarity(cohort, shares_so_far(before))
        smoothed = self.momentum * before + (1 - self.momentum) * similarity
        contribution = np.where(np.isnan(before), similarity, smoothed)
        weights = Weights(
            shares_so_far(contribution), {"similarity": similarity, "reputation": contribution}
        )
        known = with_present(state["contribution"], cohort, contribution.tolist())
        return weights, {"contribution": known}


def class_similarity(cohort: Cohort, shares: Column) -> Floats:
    """(clients,): of each client's move of a class to the sum of all, the mean over classes."""
    total = np.zeros(len(shares))
    classes = np.zeros(len(shares))
    for output in range(cohort.sent.layout.outputs):
        labels_it = np.ones(len(shares), bool)
        if cohort.labelled is not None:
            labels_it = cohort.labelled[:, output]
        if not labels_it.any():
            continue
        spans = cohort.sent.layout.rows_of(output)
        sent = np.concatenate([cohort.sent.params[span] for span in spans])
        rows = np.concatenate([cohort.params[labels_it, span] for span in spans], axis=1)
        moves = rows.astype(np.float64) - sent
        total[labels_it] += cosine(moves, shares[labels_it] @ moves)
        classes += labels_it
    return np.asarray(total / np.maximum(classes, 1))


def shares_so_far(amounts: Column) -> Column:
    """Each client's amount as a share among these; negative counts as nothing.

    A client whose amount is not known (NaN) has the mean of the others. Equal where nothing is
    left.
    """
    amounts = np.maximum(amounts, 0.0)
    unknown = np.isnan(amounts)
    if unknown.all() or not amounts[~unknown].any():
        return np.full(len(amounts), 1 / len(amounts))
    amounts[unknown] = amounts[~unknown].mean()
    return np.asarray(amounts / amounts.sum())


def shapfed(momentum: float = 0.9) -> Method:
    """Weights rise with how each class's row moves with the others'."""
    return Method(Weighted(ByClassContribution(below_one("momentum", momentum))))

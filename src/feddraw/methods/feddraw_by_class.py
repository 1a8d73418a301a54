"""FedDRAW by class: each output of the classifier has weights of its own. See docs/extensions.md.

For class c similarity is the cosine of its row (and bias) to the row that was sent; reputation and
weights follow as in FedDRAW, with the same schedules, among the clients that label the class.
Everything below the classifier goes by FedDRAW's own weights. It is FedDRAW where a client's rows
all have the same cosine and have grown by the same factor, and it is uniform at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from feddraw.core import (
    ClientView,
    Column,
    Facts,
    Layout,
    Method,
    Parts,
    Score,
    ScoredByOutput,
    Weighted,
)
from feddraw.core.schedules import BETA_MAX, ETA, LAM, Annealing, Reading
from feddraw.methods.feddraw import (
    NEEDS,
    masked_cosine,
    parts_of_weights,
    score_of,
    score_range_of,
    similarity_to_sent,
)


@dataclass(frozen=True)
class AnnealingByClass(ScoredByOutput):
    annealing: Annealing = field(default_factory=Annealing)

    needs = NEEDS

    def check(self, layout: Layout) -> None:
        layout.find("classifier")

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        similarity = similarity_to_sent(client, "classifier", "both")
        return score_of(similarity, self.annealing, facts, place)

    def score_output(self, client: ClientView, output: int, facts: Facts, place: int) -> Score:
        spans = client.sent.layout.rows_of(output)
        row = np.concatenate([client.update.model.params[span] for span in spans])
        sent = np.concatenate([client.sent.params[span] for span in spans])
        similarity = masked_cosine(row, sent, None)
        score, parts = score_of(similarity, self.annealing, facts, place)
        return score, {"similarity": similarity, "reputation": parts["reputation"]}

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        return score_range_of(self.annealing, facts, place)

    def parts_of(self, own_weights: Column, facts: Facts, places: Sequence[int]) -> Parts:
        return parts_of_weights(own_weights, self.reference(facts), self.annealing, facts, places)


def feddraw_by_class(
    eta: float = ETA, lam: float = LAM, beta_max: float = BETA_MAX, reading: Reading = "reported"
) -> Method:
    """FedDRAW with weights of its own for each class of the classifier."""
    return Method(Weighted(AnnealingByClass(Annealing(eta, lam, beta_max, reading))))

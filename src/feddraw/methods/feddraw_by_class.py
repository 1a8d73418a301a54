"""FedDRAW by class: each output of the classifier has weights of its own. See docs/extensions.md.

For class c similarity is the cosine of its row (and bias) to the row that was sent; reputation and
weights follow as in FedDRAW, with the same schedules, among the clients that label the class.
Everything below the classifier goes by FedDRAW's own weights. It is FedDRAW where a client's rows
all have the same cosine and have grown by the same factor, and it is uniform at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from feddraw.core import Cohort, Facts, Local, Method, Piece, Server, State, Weights, class_row_name
from feddraw.core.schedules import BETA_MAX, ETA, LAM, Reading, cosine, weights_and_parts
from feddraw.methods.feddraw import DualReputationAnnealing


@dataclass(frozen=True)
class AnnealingByClass(DualReputationAnnealing):
    streams = False
    by_output = True

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        whole, state = super().weigh(cohort, state)
        pieces = [self.class_piece(cohort, output) for output in range(cohort.model.layout.outputs)]
        return Weights(whole.values, whole.parts, pieces), state

    def own_rows(self, cohort: Cohort, facts: Facts, place: int) -> dict[int, float]:
        found = {}
        for output in range(cohort.model.layout.outputs):
            among, mine = facts.labelling(output, place)
            found[output] = 0.0
            if mine is not None:
                similarity = float(self.class_piece(cohort, output).parts["similarity"][0])
                score, _ = self.scored(
                    float(among.priors[mine]), similarity, facts.round, facts.rounds
                )
                found[output] = math.exp(score - self.scores(among)[1])
        return found

    def class_piece(self, cohort: Cohort, output: int) -> Piece:
        spans = cohort.model.layout.rows_of(output)
        rows = np.concatenate([cohort.params[:, span] for span in spans], axis=1)
        sent = np.concatenate([cohort.model.params[span] for span in spans])
        labelling = (
            np.ones(len(rows), bool) if cohort.labelled is None else cohort.labelled[:, output]
        )
        weight, similarity, reputation = (
            np.zeros(len(rows)),
            np.full(len(rows), np.nan),
            np.full(len(rows), np.nan),
        )
        if labelling.any():
            gamma_and_beta = self.schedule(cohort.round, cohort.rounds)
            parts = weights_and_parts(
                cohort.sizes[labelling], cosine(rows[labelling], sent), *gamma_and_beta
            )
            weight[labelling], similarity[labelling] = parts.weight, parts.similarity
            reputation[labelling] = parts.reputation
        return Piece(
            class_row_name(output),
            spans,
            weight,
            {"similarity": similarity, "reputation": reputation},
        )


def feddraw_by_class(
    eta: float = ETA, lam: float = LAM, beta_max: float = BETA_MAX, reading: Reading = "reported"
) -> Method:
    """FedDRAW with weights of its own for each class of the classifier."""
    return Method(Local(), AnnealingByClass(eta, lam, beta_max, reading), Server())

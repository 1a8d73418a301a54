"""L-DAWA: each layer of a client is scaled by its cosine to the layer that was sent. (Rehman et
al., ICCV 2023)

Layer by layer the new model is the plain mean of cos(y, x) · y, without renormalising, so it
shrinks where clients turn away. A tensor of norm zero is averaged as it is. The authors also scale
batch-norm statistics; we average those, as a variance must not shrink with the angle of something
else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import (
    Cohort,
    Entry,
    Joint,
    JointResult,
    Method,
    Needs,
    Piece,
    Weights,
    mean_buffers,
    segments_of_sum,
)
from feddraw.core.schedules import Floats, cosine


@dataclass(frozen=True)
class LayerwiseScaling(Joint):
    needs = Needs(layers="all", cost="O(K d)")

    def weigh(self, cohort: Cohort) -> Weights:
        clients = len(cohort.updates)
        equal = np.full(clients, 1 / clients)
        entries = [entry for entry in cohort.sent.layout.entries if entry.kind == "param"]
        return Weights(equal, pieces=[_layer_piece(cohort, entry, equal) for entry in entries])

    def combine(self, cohort: Cohort, weights: Weights) -> JointResult:
        return scaled_models(cohort, weights)


def scaled_models(cohort: Cohort, weights: Weights) -> JointResult:
    """The sum of the clients' models, each times its weight, which need not sum to one.

    Where the weights of a piece do not, the model shrinks or grows there.
    """
    sent = cohort.sent.params
    total = cohort.averaged(weights.values, weights.segments)
    for span, column in segments_of_sum(len(total), weights.values, weights.segments):
        total[span] += (float(column.sum()) - 1.0) * sent[span]
    difference = sum(
        (span.stop - span.start) * (values - weights.values) for span, values in weights.segments
    )
    mean_coefficients = weights.values + difference / len(sent)
    return JointResult(total, mean_buffers(cohort, weights), np.asarray(mean_coefficients))


def _layer_piece(cohort: Cohort, entry: Entry, equal: Floats) -> Piece:
    rows = cohort.params[:, entry.span]
    sent = cohort.sent.params[entry.span]
    similarity = np.where(rows.any(axis=1) & sent.any(), cosine(rows, sent), 1.0)
    return Piece(entry.name, [entry.span], equal * similarity, {"similarity": similarity})


def ldawa() -> Method:
    """Each layer counts by its cosine to the one that was sent."""
    return Method(LayerwiseScaling())

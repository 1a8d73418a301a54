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
    Local,
    Method,
    Piece,
    Server,
    State,
    Vector,
    Weighting,
    Weights,
    not_secure,
)
from feddraw.core.schedules import Floats, cosine


@dataclass(frozen=True)
class LdawaServer(Server):
    """The clients' models times their coefficients: where these do not sum to one, the model
    shrinks or grows.
    """

    linear = False
    streams = False
    adds_to_average = False
    secure = not_secure("coefficients that are no shares scale the model")

    def coefficients(self, cohort: Cohort, weights: Weights) -> Floats:
        """Averaged over the parameters, where pieces of the model have their own."""
        length = len(cohort.model.params)
        extra = sum(
            (span.stop - span.start) * (values - weights.values)
            for span, values in weights.segments
        )
        return np.asarray(weights.values + extra / length)

    def step(self, cohort: Cohort, weights: Weights, state: State) -> tuple[Vector, State]:
        return cohort.sum(weights.values, weights.segments), state


@dataclass(frozen=True)
class LdawaWeighting(Weighting):
    needs = "all parameters"
    cost = "O(K d)"
    secure = not_secure("a layer's cosine scales the model, it is no share of a sum")
    sums_to_one = False
    made_for = LdawaServer

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        entries = [entry for entry in cohort.model.layout.entries if entry.kind == "param"]
        values = np.full(len(cohort.updates), 1 / len(cohort.updates))
        return Weights(
            values, pieces=[_layer_piece(cohort, entry, values) for entry in entries]
        ), state


def _layer_piece(cohort: Cohort, entry: Entry, mean: Floats) -> Piece:
    rows, sent = cohort.params[:, entry.span], cohort.model.params[entry.span]
    similarity = np.where(rows.any(axis=1) & sent.any(), cosine(rows, sent), 1.0)
    return Piece(entry.name, [entry.span], mean * similarity, {"similarity": similarity})


def ldawa() -> Method:
    """Each layer counts by its cosine to the one that was sent."""
    return Method(Local(), LdawaWeighting(), LdawaServer())

"""Clients that label different findings: each of the classifier's rows counts over the clients that
label its finding.

The body of the model is shared by the ordinary weights. For a finding that only some of the clients
present label, the rule's weights are divided among those (`Weights.pieces`): the others' rows
hardly move, and would slow the row down. A row that nobody present labels stays as it was sent, to
the bit, whatever the server rule. Where every client labels every finding nothing here changes a
weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from feddraw.core import Cohort, Piece, Vector, Weights, output_name


def divided_among_labelling(cohort: Cohort, weights: Weights) -> Weights:
    """The weights, with a piece for each row whose finding is not labelled by all of the cohort."""
    if cohort.labelled is None:
        return weights
    pieces = list(weights.pieces)
    for output in np.flatnonzero(~cohort.labelled.all(axis=0)).tolist():
        for span in cohort.sent.layout.rows_of(output):
            pieces = _pieces_with_row(
                pieces, weights.values, span, output_name(output), cohort.labelled[:, output]
            )
    return replace(weights, pieces=pieces)


def _pieces_with_row(
    pieces: Sequence[Piece],
    values: NDArray[np.float64],
    row: slice,
    name: str,
    labelling: NDArray[np.bool_],
) -> list[Piece]:
    """The pieces, with the row cut out of the one that it lies in and its weights divided among
    those who label it.
    """
    # A row lies in one piece, or in none: then it has the weights of the whole model.
    source = Piece(name, [], values)
    remaining: list[Piece] = []
    for piece in pieces:
        if not any(span.start <= row.start and row.stop <= span.stop for span in piece.spans):
            remaining.append(piece)
            continue
        source = piece
        spans = [part for span in piece.spans for part in _span_without_row(span, row)]
        if spans:
            remaining.append(replace(piece, spans=spans))

    row_values = _values_among_labelling(source.values, labelling)

    # A finding has two rows, one of weights and one of biases: both are one piece if they agree.
    for number, piece in enumerate(remaining):
        if piece.name == name and np.array_equal(piece.values, row_values):
            remaining[number] = replace(piece, spans=[*piece.spans, row])
            return remaining
    return [*remaining, Piece(name, [row], row_values, source.parts, source.limited)]


def _span_without_row(span: slice, row: slice) -> list[slice]:
    """What is left of a span without a row in it."""
    if row.start < span.start or span.stop < row.stop:
        return [span]
    return [
        part
        for part in (slice(span.start, row.start), slice(row.stop, span.stop))
        if part.start < part.stop
    ]


def _values_among_labelling(
    values: NDArray[np.float64], labelling: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Weights among those who label a finding, with the sum that all had; zeros where none of them
    counts.
    """
    kept = np.where(labelling, values, 0.0)
    total = kept.sum()
    return kept * (values.sum() / total) if total else np.zeros_like(kept)


def with_unlabelled_rows_as_sent(params: Vector, sent: Vector, weights: Weights) -> Vector:
    """The parameters, with the rows of findings that nobody present labels as they were sent."""
    unlabelled = [span for span, values in weights.segments if not values.any()]
    if not unlabelled:
        return params
    params = params.copy()
    for span in unlabelled:
        params[span] = sent[span]
    return params

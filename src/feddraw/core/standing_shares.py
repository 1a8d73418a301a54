"""Standing shares: how much of the federation each client represents, whether it takes part in a
round or not.

The servers of SCAFFOLD and FedDyn keep the mean of a vector that every client remembers. A round's
weights say how the clients that are present count among themselves, and they change from round to
round. So each client has a share: 1/K at the start, and after a round in which it counted, its
weight times the sum of the shares of those present. The shares of all clients sum to one at all
times. They are the weights themselves when all are present, 1/K under uniform weights, and they
approach the weights of all clients where the cohorts change but agree on the ratios.

The server keeps the mean and the shares, never the single vectors: a client sends how its vector
changed, and, unless the weights are uniform, what the vector was before ("held"). Both enter as
weighted sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from feddraw.core import Cohort, Column, State, Vector, Weights, segments_of_sum, weighted_sum

WeightedChanges = Callable[
    [Column, slice], Vector
]  # by coefficients, in a slice of the parameters: the weighted sum
Shares = Mapping[
    str, float
]  # by client, in units of 1/K; one for a client that has not counted yet


def initial_shares() -> State:
    """Before the first round."""
    return {"population": 0, "shares": {}, "pieces": {}}


def update_standing_mean(
    mean: Vector, state: State, cohort: Cohort, weights: Weights, changes: WeightedChanges
) -> tuple[Vector, State]:
    """The mean over all clients after a round, and the state for the next one."""
    everyone, known = (
        cohort.population,
        initial_shares() | state,
    )  # a checkpoint of an older version has no shares
    total = mean * (known["population"] / everyone) if known["population"] else mean.copy()
    held = cohort.extra("held") if "held" in cohort.updates[0].extra else None
    if (
        held is None
    ):  # the clients were not asked, because the weights are even: shares cannot change
        weights = Weights(_shares_before_and_after(known["shares"], cohort, weights.values)[0])
    whole = _shares_before_and_after(known["shares"], cohort, weights.values)
    earlier = {
        piece.name: known["pieces"].get(piece.name, known["shares"]) for piece in weights.pieces
    }
    pieces = {
        p.name: _shares_before_and_after(earlier[p.name], cohort, p.values) for p in weights.pieces
    }
    segments = [(span, pieces[piece.name]) for piece in weights.pieces for span in piece.spans]
    for span, (before, after) in segments_of_sum(len(mean), whole, segments):
        total[span] += changes(after / everyone, span)
        if held is not None:
            total[span] += weighted_sum((after - before) / everyone, held[:, span])
    by_piece = {
        name: _with_shares_after(earlier[name], cohort, both) for name, both in pieces.items()
    }
    shares = _with_shares_after(known["shares"], cohort, whole)
    return total, {"population": everyone, "shares": shares, "pieces": known["pieces"] | by_piece}


def _shares_before_and_after(
    shares: Shares, cohort: Cohort, weights: Column
) -> NDArray[np.float64]:
    """(2, clients): the shares of those present before the round and after it. Their sum stays."""
    before = np.array([shares.get(str(client), 1.0) for client in cohort.clients])
    total = (
        weights.sum()
    )  # zero where nobody present labels the piece's finding: then nothing is dealt anew
    return np.stack([before, before.sum() * weights / total if total else before])


def _with_shares_after(
    shares: Shares, cohort: Cohort, both: NDArray[np.float64]
) -> dict[str, float]:
    return {**shares, **dict(zip(map(str, cohort.clients), both[1].tolist(), strict=True))}

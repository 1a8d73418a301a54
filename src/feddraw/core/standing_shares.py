"""Standing shares: how much of the federation each client represents, present or not.

The servers of SCAFFOLD and FedDyn keep the mean of a vector that every client remembers. A round's
weights say how the clients that are present count among themselves, and they change from round to
round. So each client has a share: 1/K at the start, and after a round in which it was weighted, its
weight times the sum of the shares of those present. The shares of all clients sum to one at all
times. They are the weights themselves when all are present, 1/K under uniform weights, and they
approach the weights of all clients where the cohorts change but agree on the ratios.

The server keeps the mean and the shares, never the single vectors: a client sends how its vector
changed, and, unless the weights are uniform, what the vector was before ("held"). Both enter as
weighted sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from feddraw.core.cohort import Cohort
from feddraw.core.exchange import State
from feddraw.core.model import Vector
from feddraw.core.server import Sums
from feddraw.core.sums import Column, segments_of_sum, weighted_sum

# From coefficients and a slice of the parameters to the sum of the clients' changes there.
WeightedChange = Callable[[Column, slice], Vector]
# By client, in units of 1/K; one for a client that was never weighted.
Shares = Mapping[str, float]


@dataclass(frozen=True, eq=False)
class ShareChange:
    """The shares of the clients present, before a round and after it. Their sum stays."""

    before: Column
    after: Column


def initial_shares() -> State:
    """Before the first round."""
    return {"population": 0, "shares": {}, "pieces": {}}


def update_standing_mean(
    mean: Vector, state: State, sums: Sums, change: WeightedChange
) -> tuple[Vector, State]:
    """The mean over all clients after a round, and the state for the next one."""
    cohort = sums.cohort
    weights = sums.weights
    population = cohort.population
    shares: Shares = state["shares"]
    by_piece: Mapping[str, Shares] = state["pieces"]
    held = cohort.extra("held") if "held" in cohort.updates[0].extra else None
    pieces = weights.pieces
    if held is None:
        # Nobody sent what it remembered, because weights stay equal: shares cannot change.
        whole = _unchanged(shares, cohort)
        pieces = ()
    else:
        whole = _changed(shares, cohort, weights.values)
    earlier = {piece.name: by_piece.get(piece.name, shares) for piece in pieces}
    changes = {piece.name: _changed(earlier[piece.name], cohort, piece.values) for piece in pieces}
    segments = [(span, changes[piece.name]) for piece in pieces for span in piece.spans]
    total = mean * (state["population"] / population) if state["population"] else mean.copy()
    for span, share in segments_of_sum(len(mean), whole, segments):
        total[span] += change(share.after / population, span)
        if held is not None:
            total[span] += weighted_sum((share.after - share.before) / population, held[:, span])
    next_by_piece = {name: _after(earlier[name], cohort, changes[name]) for name in changes}
    next_state = {
        "population": population,
        "shares": _after(shares, cohort, whole),
        "pieces": {**by_piece, **next_by_piece},
    }
    return total, next_state


def _unchanged(shares: Shares, cohort: Cohort) -> ShareChange:
    before = np.array([shares.get(str(client), 1.0) for client in cohort.clients])
    # Dividing by the sum and multiplying with it again keeps the bits of every other round.
    return ShareChange(before, before.sum() * before / before.sum())


def _changed(shares: Shares, cohort: Cohort, weights: Column) -> ShareChange:
    before = np.array([shares.get(str(client), 1.0) for client in cohort.clients])
    total = weights.sum()
    if not total:  # nobody present labels the piece's finding: nothing is shared out anew
        return ShareChange(before, before)
    return ShareChange(before, before.sum() * weights / total)


def _after(shares: Shares, cohort: Cohort, change: ShareChange) -> dict[str, float]:
    names = map(str, cohort.clients)
    return {**shares, **dict(zip(names, change.after.tolist(), strict=True))}

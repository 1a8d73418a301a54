"""Standing shares: how much of the federation each client represents, present or not.

The servers of SCAFFOLD and FedDyn keep the mean of a vector that every client remembers. A round's
weights say how the clients that are present count among themselves, and they change from round to
round. So each client has a share: 1/K at the start, and after a round in which it was weighted, its
weight times the sum of the shares of those present. The shares of all clients sum to one at all
times. They are the weights themselves when all are present, 1/K under uniform weights, and they
approach the weights of all clients where the cohorts change but agree on the ratios.

Parameters that had weights of their own in some round (`Piece`: the row of a finding that not all
of the cohort label) have shares of their own from then on, also in rounds in which the weights of
the whole model hold for them: the mean there is by the shares under which it was made.

The server keeps the mean and the shares, never the single vectors: a client sends how its vector
changed, and, unless the weights are uniform, what the vector was before ("held"). Both enter as
weighted sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from feddraw.core.by_client import of_present, with_present
from feddraw.core.cohort import Cohort
from feddraw.core.exchange import State
from feddraw.core.model import Vector
from feddraw.core.server import Sums
from feddraw.core.sums import Column, Segment, segments_of_sum, weighted_sum

# From coefficients and a slice of the parameters to the sum of the clients' changes there.
WeightedChange = Callable[[Column, slice], Vector]
# By client, in units of 1/K; one for a client that was never weighted.
Shares = Mapping[str, float]
FIRST_SHARE = 1.0


@dataclass(frozen=True, eq=False)
class Stretch:
    """Consecutive parameters that have the same shares before a round, and the same weights in
    it.
    """

    span: slice
    shares: Shares
    weights: Column  # of the clients present
    own: bool  # whether its shares are its own, or those of the whole model


@dataclass(frozen=True, eq=False)
class ShareChange:
    """The shares of the clients present, before a round and after it. Their sum stays."""

    before: Column
    after: Column


def initial_shares() -> State:
    """Before the first round."""
    return {"population": 0, "shares": {}, "spans": {}}


def update_standing_mean(
    mean: Vector, state: State, sums: Sums, change: WeightedChange
) -> tuple[Vector, State]:
    """The mean over all clients after a round, and the state for the next one."""
    cohort = sums.cohort
    population = cohort.population
    shares: Shares = state["shares"]
    held = cohort.extra("held") if "held" in cohort.updates[0].extra else None
    if held is None:
        # Nobody sent what it remembered, because weights stay equal: so do the shares.
        weights = of_present(shares, cohort, FIRST_SHARE)
        segments: Sequence[Segment] = ()
    else:
        weights = sums.weights.values
        segments = sums.weights.segments
    total = mean * (state["population"] / population) if state["population"] else mean.copy()
    next_by_span = {}
    for stretch in _stretches(len(mean), state, weights, segments):
        span = stretch.span
        share = _changed(stretch.shares, cohort, stretch.weights)
        total[span] += change(share.after / population, span)
        if held is not None:
            total[span] += weighted_sum((share.after - share.before) / population, held[:, span])
        if stretch.own:
            after = share.after.tolist()
            next_by_span[_span_text(span)] = with_present(stretch.shares, cohort, after)
    of_whole_model = _changed(shares, cohort, weights)
    next_state = {
        "population": population,
        "shares": with_present(shares, cohort, of_whole_model.after.tolist()),
        "spans": next_by_span,
    }
    return total, next_state


def _stretches(
    length: int, state: State, weights: Column, segments: Sequence[Segment]
) -> Iterator[Stretch]:
    """All parameters in order, cut where the shares or the round's weights change."""
    shares: Shares = state["shares"]
    by_span: Mapping[str, Shares] = state["spans"]
    shares_by_span = [(_span_of_text(text), own) for text, own in by_span.items()]
    # None where those of the whole model hold
    for with_shares, own_shares in segments_of_sum(length, None, shares_by_span):
        for with_weights, own_weights in segments_of_sum(length, None, segments):
            start = max(with_shares.start, with_weights.start)
            stop = min(with_shares.stop, with_weights.stop)
            if start < stop:
                yield Stretch(
                    span=slice(start, stop),
                    shares=shares if own_shares is None else own_shares,
                    weights=weights if own_weights is None else own_weights,
                    own=own_shares is not None or own_weights is not None,
                )


def _span_text(span: slice) -> str:
    return f"{span.start}:{span.stop}"


def _span_of_text(text: str) -> slice:
    start, stop = text.split(":")
    return slice(int(start), int(stop))


def _changed(shares: Shares, cohort: Cohort, weights: Column) -> ShareChange:
    before = of_present(shares, cohort, FIRST_SHARE)
    total = weights.sum()
    if not total:  # nobody present labels the finding of these parameters: shares stay
        return ShareChange(before, before)
    return ShareChange(before, before.sum() * weights / total)

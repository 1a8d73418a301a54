"""What a server rule sees of an opened secure sum: weighted means, and no client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import Column, Segment, Sums, Vector
from feddraw.core.sums import segments_of_sum
from feddraw.errors import UserError

RATIO = 1e-9  # rounding that two columns of one ratio may show


@dataclass(frozen=True, eq=False)
class OpenedSums(Sums):
    """Sums of which only the means under the weights are left.

    The cohort's updates hold what was said in clear, with the sent model in place of their own.
    """

    # Float64: the mean move under the weights, and under a piece's weights where one is. None where
    # each move was multiplied with what only its client knows.
    mean_move: Vector | None = None

    def moved_by(self, by: Column, span: slice) -> Vector:
        if self.mean_move is None:
            raise UserError(
                "a rule of this method needs the clients' moves without the factors that they were"
                " summed with"
            )
        total = np.empty(span.stop - span.start)
        for part, weights in self._weights_in(span):
            times = _how_many_times(by, weights)
            total[part.start - span.start : part.stop - span.start] = times * self.mean_move[part]
        return total.astype(self.cohort.sent.params.dtype)

    def extra_by(self, name: str, by: Column, span: slice) -> Vector:
        raise UserError(
            f"a rule of this method needs {name} of the clients, and a secure sum is of moves only"
        )

    def _weights_in(self, span: slice) -> list[Segment]:
        """The parts of a span with the weights under which their mean is known."""
        length = len(self.cohort.sent.params)
        parts = []
        for whole, weights in segments_of_sum(length, self.weights.values, self.weights.segments):
            part = slice(max(whole.start, span.start), min(whole.stop, span.stop))
            if part.start < part.stop:
                parts.append((part, weights))
        return parts


def _how_many_times(wanted: Column, known: Column) -> float:
    """How many times the known coefficients the wanted ones are."""
    total = known.sum()
    times = float(wanted.sum() / total) if total else 0.0
    tolerance = RATIO * abs(wanted).max(initial=0)
    if not np.allclose(wanted, times * known, rtol=RATIO, atol=tolerance):
        raise UserError(
            "a rule of this method needs the clients' moves under other weights than were summed"
        )
    return times

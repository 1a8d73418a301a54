"""A cohort of which only means are left: what a server rule sees of a secure sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from feddraw.core import Cohort, Matrix, Server, Weights
from feddraw.core.model import Vector
from feddraw.core.sums import Column, Segment, segments_of_sum
from feddraw.errors import UserError

RATIO = 1e-9  # rounding that two columns of one ratio may show


@dataclass(frozen=True, eq=False, kw_only=True)
class SecureCohort(Cohort):
    """A cohort of which only means are left.

    Its updates hold what was said in clear, with the sent model.
    """

    weights: Weights
    # float64, the mean of factor · move under the weights, and under a piece's weights where one is
    moves: Vector
    means: Mapping[str, Vector]  # of each vector beside the model, float64
    # what each client's move was multiplied with beside its weight, as far as the server knows
    multiplied: Column
    term: float  # the mean of the server rule's terms
    announced: Column  # how far each client says that it moved

    @property
    def params(self) -> Matrix:
        self._hidden("parameters")

    @property
    def buffers(self) -> Matrix:
        self._hidden("buffers")

    @property
    def distances(self) -> Column:
        return self.announced

    def _hidden(self, what: str) -> NoReturn:
        raise UserError(
            f"a rule of this method needs single clients' {what}, and a secure sum hides them"
        )

    def factors(self, server: Server) -> Column:
        return self.multiplied

    def mean_term(self, server: Server, weights: Weights) -> float:
        return self.term

    def moved(self, by: Column, span: slice) -> Vector:
        total = np.empty(span.stop - span.start)
        for part, known in self._known(span):
            total[part.start - span.start : part.stop - span.start] = (
                self._times(by, known) * self.moves[part]
            )
        return total.astype(self.model.params.dtype)

    def extra_sum(self, name: str, by: Column, span: slice) -> Vector:
        mean = self.means[name][span]
        return (self._times(by, self.weights.values) * mean).astype(self.model.params.dtype)

    def combine_and_measure(
        self, coefficients: Column, segments: Sequence[Segment] = ()
    ) -> tuple[Vector, Column]:
        total = self.model.params.copy()
        for span, column in segments_of_sum(len(total), coefficients, segments):
            for part, known in self._known(span):
                if known.any():
                    total[part] = (
                        self.model.params[part] + self._times(column, known) * self.moves[part]
                    )
        return total, self.announced

    def _known(self, span: slice) -> list[Segment]:
        """The parts of a span with the coefficients under which their mean is known."""
        whole = segments_of_sum(len(self.moves), self.weights.values, self.weights.segments)
        cut = [
            (slice(max(s.start, span.start), min(s.stop, span.stop)), own * self.multiplied)
            for s, own in whole
        ]
        return [(part, column) for part, column in cut if part.start < part.stop]

    def _times(self, wanted: Column, known: Column) -> float:
        """How many times the known coefficients the wanted ones are."""
        total = known.sum()
        times = float(wanted.sum() / total) if total else 0.0
        if not np.allclose(
            wanted, times * known, rtol=RATIO, atol=RATIO * abs(wanted).max(initial=0)
        ):
            raise UserError(
                "a rule of this method needs the clients' moves under other weights than were"
                " summed"
            )
        return times

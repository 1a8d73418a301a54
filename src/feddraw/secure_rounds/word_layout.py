"""Which word of a masked sum means what, and how exact it is: the same for clients and server.

[weight · move, weight · change of the buffers, weight · each vector beside the model, two numbers for rules that need
them, the weights]. A weight is a multiple of 2^-40, so weights and their sum are exact. Each product is rounded to
2^-40: a mean over K clients is at most 2^-41 · K / (sum of the weights) away from that of the real numbers. The sum of
the weights must be at least K · `SMALLEST`, so that this is never more than `PRECISION`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from feddraw.core import Column, Facts, Layout, Method, Piece, Server, Weights, class_row_name
from feddraw.errors import UserError
from feddraw.secure_rounds.announcement import LEAST_SHARE, Numbers
from feddraw.secure_sums.fixed_point import FRACTION_BITS

SMALLEST = LEAST_SHARE  # mean weight
PRECISION = 2.0 ** -(FRACTION_BITS + 1) / SMALLEST  # of a mean over clients: 2^-25


@dataclass(frozen=True)
class Form:
    """The parts of the vector, one behind the other."""

    params: int
    buffers: int
    extras: Mapping[str, int]  # by name, its length
    terms: bool  # two numbers: weight · factor and weight · term (see `Server.terms`)
    outputs: tuple[int, ...]  # of the classifier, that have a weight of their own

    @staticmethod
    def of(method: Method, layout: Layout, facts: Facts) -> Form:
        extents = {name: extent for name, extent in method.local.sends.items() if name not in method.server.announced}
        return Form(
            layout.length("param"),
            layout.length("buffer"),
            {name: layout.extent(extent) for name, extent in extents.items()},
            type(method.server).terms is not Server.terms,
            outputs_of(method, layout, facts),
        )

    def spans(self) -> dict[str, slice]:
        """Where each part lies; an extra vector under its name behind "extra."."""
        extras = {f"extra.{name}": length for name, length in self.extras.items()}
        lengths = {"params": self.params, "buffers": self.buffers, **extras}
        lengths |= {"terms": 2 * self.terms, "weights": 1 + len(self.outputs)}
        ends = np.cumsum([0, *lengths.values()]).tolist()
        return {name: slice(*pair) for name, pair in zip(lengths, pairwise(ends), strict=True)}

    @property
    def length(self) -> int:
        return int(self.spans()["weights"].stop)


def outputs_of(method: Method, layout: Layout, facts: Facts) -> tuple[int, ...]:
    """The outputs with a weight of their own: by the rule, or because not all who were asked label the finding."""
    if method.weighting.by_output:
        return tuple(range(layout.outputs))
    return () if facts.labelled is None else tuple(np.flatnonzero(~facts.labelled.all(axis=0)).tolist())


def exact(weight: float) -> float:
    """The nearest weight that fixed point can hold."""
    return math.ldexp(round(math.ldexp(weight, FRACTION_BITS)), -FRACTION_BITS)


def as_weights(own: list[Numbers], layout: Layout, outputs: tuple[int, ...]) -> Weights:
    """The weights of some clients from how each weighs itself."""
    columns = np.array(own, np.float64).T
    body, *rows = [column / total if (total := column.sum()) else column for column in columns]
    pairs = zip(outputs, rows, strict=True)
    return Weights(body, pieces=[Piece(class_row_name(output), layout.rows_of(output), row) for output, row in pairs])


def check_facts(method: Method, facts: Facts) -> None:
    """Refuse labels that do not fit the rule, and settings and sizes that allow weights too small to be exact."""
    if method.server.all_rows and facts.labelled is not None:
        raise UserError("this method needs all clients' moves everywhere, and some do not label all findings")
    try:
        low, high = method.weighting.scores(facts)
    except NotImplementedError:  # known only when the weights are
        return
    if math.isfinite(low) and low - high < math.log(SMALLEST):
        raise UserError(
            f"in round {facts.round} a client may weigh {math.exp(low - high):.2g} of another: a secure sum is exact "
            f"to {SMALLEST:.2g}; choose milder settings (FedDRAW: a smaller beta_max), or leave out tiny clients"
        )


def too_small(weights: Column, clients: int) -> bool:
    """Whether sums of weights over so many clients are too small for the stated precision; a row may have none."""
    least = clients * SMALLEST
    return bool(weights[0] < least or ((weights > 0) & (weights < least)).any())

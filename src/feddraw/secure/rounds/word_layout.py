"""Which word of a secure sum means what, the same for clients and server.

[weight · move, weight · change of the buffers, weight · each vector beside the model, two numbers
for rules that need them, the weights]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from feddraw.core import Facts, Layout, Method, Server
from feddraw.secure.rounds.round_weights import secure_outputs_with_own_weight


@dataclass(frozen=True)
class WordLayout:
    """The parts of the vector of words, one after the other."""

    params: int
    buffers: int
    extras: Mapping[str, int]  # by name, its length
    terms: bool  # two numbers: weight · factor and weight · term (see `Server.terms`)
    outputs: tuple[int, ...]  # of the classifier, that have a weight of their own

    @staticmethod
    def of(method: Method, layout: Layout, facts: Facts) -> WordLayout:
        extents = {
            name: extent
            for name, extent in method.local.sends.items()
            if name not in method.server.announced
        }
        extras = {name: layout.extent(extent) for name, extent in extents.items()}
        terms, outputs = (
            type(method.server).terms is not Server.terms,
            secure_outputs_with_own_weight(method, layout, facts),
        )
        return WordLayout(layout.length("param"), layout.length("buffer"), extras, terms, outputs)

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

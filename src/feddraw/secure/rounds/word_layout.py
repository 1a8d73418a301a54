"""Which word of a secure sum means what, the same for clients and server.

[weight · factor · move, weight · change of the buffers, weight · factor and weight · term where a
server rule has them, the loss, weight · factor · length of the move, the weights by column]

A column is the whole model, then each output of the classifier that is weighted separately. A
client's number is summed once: in two sums under different weights it could be computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from feddraw.core import Facts, Layout, Method
from feddraw.secure.rounds import rules_of_method


@dataclass(frozen=True)
class WordLayout:
    """The parts of the vector of words, one after the other."""

    params: int
    buffers: int
    factored: bool  # each move is also multiplied with a factor that only its client knows
    outputs: tuple[int, ...]  # of the classifier, that are weighted separately

    @staticmethod
    def of(method: Method, layout: Layout, facts: Facts) -> WordLayout:
        return WordLayout(
            params=layout.length("param"),
            buffers=layout.length("buffer"),
            factored=rules_of_method.factored_server(method) is not None,
            outputs=rules_of_method.separate_outputs(method, layout, facts),
        )

    @property
    def columns(self) -> int:
        """The whole model, and each output that is weighted separately."""
        return 1 + len(self.outputs)

    def spans(self) -> dict[str, slice]:
        """Where each part lies."""
        factors = 1 if self.factored else 0
        lengths = {"params": self.params, "buffers": self.buffers}
        lengths |= {"factor": factors, "term": factors, "loss": 1, "length": 1}
        lengths |= {"weights": self.columns}
        ends = np.cumsum([0, *lengths.values()]).tolist()
        return {name: slice(*pair) for name, pair in zip(lengths, pairwise(ends), strict=True)}

    @property
    def length(self) -> int:
        return int(self.spans()["weights"].stop)

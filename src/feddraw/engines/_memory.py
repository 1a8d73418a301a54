"""What engines share: what clients remember between rounds, and room for the updates of a round."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.core import Extent, Layout, Memory, Model, Vector


class EngineWithMemory:
    """What clients remember.

    What they learn in a round is kept apart until the server says whose update counted.
    """

    def __init__(self) -> None:
        self.memory: dict[int, Memory] = {}
        self._learnt: dict[int, Memory] = {}

    def commit(self, clients: Collection[int]) -> None:
        self.memory |= {
            client: learnt for client, learnt in self._learnt.items() if client in clients
        }
        self._learnt = {}


class Inbox:
    """Memory for the updates of a round: one row per client in one matrix of each kind, so that
    sums need no copy.
    """

    def __init__(self, layout: Layout, arrays: Mapping[str, NDArray[Any]]) -> None:
        """In arrays of these `shapes`; there may be others among them."""
        self.layout = layout
        self.params = arrays["params"]
        self.buffers = arrays["buffers"]
        self.counters = arrays["counters"]
        self.extra = {
            name.removeprefix("extra."): array
            for name, array in arrays.items()
            if name.startswith("extra.")
        }

    @staticmethod
    def shapes(
        layout: Layout, rows: int, sends: Mapping[str, Extent]
    ) -> dict[str, tuple[tuple[int, int], Any]]:
        """Name to shape and type of the matrices that an inbox is made of."""
        shapes: dict[str, tuple[tuple[int, int], Any]] = {
            "params": ((rows, layout.length("param")), np.float32),
            "buffers": ((rows, layout.length("buffer")), np.float32),
            "counters": ((rows, layout.length("counter")), np.int64),
        }
        for name, extent in sends.items():
            shapes[f"extra.{name}"] = ((rows, layout.extent(extent)), np.float32)
        return shapes

    def model(self, row: int) -> Model:
        """The trained model in a row, as a view."""
        return Model(self.params[row], self.buffers[row], self.counters[row], self.layout)

    def extra_in_row(self, row: int) -> dict[str, Vector]:
        """What a client sends beside its model, as views."""
        return {name: matrix[row] for name, matrix in self.extra.items()}

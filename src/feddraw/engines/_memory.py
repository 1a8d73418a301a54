"""What engines share: the memory of clients between rounds, and memory for the updates of a
round.
"""

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


class EngineInbox:
    """Memory for the updates of a round: one row per client in one matrix of each kind, so that
    sums need no copy.
    """

    def __init__(self, layout: Layout, arrays: Mapping[str, NDArray[Any]]) -> None:
        """In arrays of these `shapes`; there may be others among them."""
        self.layout = layout
        self.params, self.buffers, self.counters = (
            arrays[name] for name in ("params", "buffers", "counters")
        )
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
        kinds = {
            "params": ("param", np.float32),
            "buffers": ("buffer", np.float32),
            "counters": ("counter", np.int64),
        }
        shapes = {
            name: ((rows, layout.length(kind)), dtype) for name, (kind, dtype) in kinds.items()
        }
        return shapes | {
            f"extra.{name}": ((rows, layout.extent(e)), np.float32) for name, e in sends.items()
        }

    def model(self, row: int) -> Model:
        return Model(self.params[row], self.buffers[row], self.counters[row], self.layout)

    def extra_in_row(self, row: int) -> dict[str, Vector]:
        return {name: matrix[row] for name, matrix in self.extra.items()}

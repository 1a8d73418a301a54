"""Engines: jobs in, updates out.

The only interface between the federated loop and the clients, wherever they run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feddraw.core import Job, Memory, Model, Update

Rows = NDArray[np.intp]
Scores = NDArray[np.float32]  # (images, findings), probabilities


class Engine(Protocol):
    """Where clients train."""

    memory: dict[int, Memory]  # by client; read for a checkpoint, set to resume from one

    def commit(self, clients: Collection[int]) -> None:
        """The updates of these clients in the last `train` have counted, so they remember what they
        learnt there.

        The others forget that round: otherwise their memory would no longer fit the server's state.
        """

    def train(self, jobs: Sequence[Job], *, in_turn: bool = False) -> Iterator[Update]:
        """Updates as they come, in any order, valid until the next call.

        With `in_turn` they come in the order of the jobs, each valid only until the next: for sums
        that keep none.
        """

    def predict(self, model: Model, rows: Rows) -> Scores: ...

    def close(self) -> None: ...

"""Scenarios: ways to deal a data set's training images to clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Shard:
    """One client's images."""

    client: str  # C1, C2, … or the site's name
    rows: NDArray[np.intp]  # into the training labels that were dealt, ascending

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Partition:
    """The outcome of dealing: disjoint shards, and a hash that is the same on every machine."""

    scenario: str
    shards: tuple[Shard, ...]
    sha256: str

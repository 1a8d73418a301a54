"""A partition: which client has which images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp]
ClientRows = dict[str, Rows]  # client's name -> its images


def numbered_clients(clients: Sequence[Rows]) -> ClientRows:
    """Clients called C1, C2, … as in the paper."""
    return {f"C{number}": rows for number, rows in enumerate(clients, start=1)}


@dataclass(frozen=True, eq=False)
class Shard:
    """One client's images."""

    client: str  # C1, C2, … or the site's name
    rows: NDArray[np.intp]  # of the training labels, ascending

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Partition:
    """Disjoint shards, and a hash of them that is the same on every machine."""

    scenario: str
    shards: tuple[Shard, ...]
    sha256: str

    @property
    def sizes(self) -> NDArray[np.intp]:
        return np.array([len(shard) for shard in self.shards])

"""What a rule keeps of every client in its state, by the client's number as text, as checkpoints
hold it.

A client that is not in a round keeps what it had. One that was never in a round has no entry.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

import numpy as np

from feddraw.core.cohort import Cohort
from feddraw.core.sums import Column

Kept = TypeVar("Kept")


def of_present(kept: Mapping[str, float], cohort: Cohort, otherwise: float = math.nan) -> Column:
    """(clients,): the number of each client of a cohort; `otherwise` where there is none yet."""
    numbers = [kept.get(str(client), otherwise) for client in cohort.clients]
    return np.array(numbers, dtype=np.float64)


def with_present(kept: Mapping[str, Kept], cohort: Cohort, now: Iterable[Kept]) -> dict[str, Kept]:
    """The same for the next round, with what the clients of a cohort have now, in their order."""
    names = map(str, cohort.clients)
    return {**kept, **dict(zip(names, now, strict=True))}

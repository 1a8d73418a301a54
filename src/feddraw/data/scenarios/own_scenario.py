"""A scenario of the user's own: `package.module:function` with function(labels, seed, scale,
**options).

It returns a Partition, a mapping of client names to row numbers, or a sequence of them (then C1,
C2, …). Naming code is running it: who calls `deal` with such a name from a file must have asked the
user first.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from feddraw.catalog import own_function
from feddraw.data.dataset import Labels
from feddraw.data.scenarios.partition import ClientRows, Rows, numbered_clients
from feddraw.errors import UserError


def deal_own_scenario(
    name: str, labels: Labels, seed: int, scale: float, options: Mapping[str, object]
) -> ClientRows:
    """What the user's function deals, checked."""
    function = own_function(name)
    try:
        call = inspect.signature(function).bind(labels, seed, scale, **options)
    except TypeError as problem:
        raise UserError(
            f"{name} is called with (labels, seed, scale, **options): {problem}"
        ) from None
    hands = _clients_of_own_scenario(function(*call.args, **call.kwargs), name)
    return {
        str(client): _own_scenario_rows(rows, len(labels), f"{name}, client {client}")
        for client, rows in hands.items()
    }


def _clients_of_own_scenario(dealt: Any, name: str) -> Mapping[Any, Any]:
    if (shards := getattr(dealt, "shards", None)) is not None:
        return {shard.client: shard.rows for shard in shards}
    if isinstance(dealt, Mapping):
        return dealt
    try:
        return numbered_clients(list(dealt))
    except TypeError:
        raise UserError(
            f"{name} must return a list of row numbers per client, not {type(dealt).__name__}"
        ) from None


def _own_scenario_rows(rows: Any, images: int, whose: str) -> Rows:
    try:
        array = np.asarray(rows)
    except ValueError:  # lists of unequal length
        array = np.empty((0, 0))
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise UserError(f"{whose}: row numbers must be a one-dimensional list of whole numbers")
    if array.size and not 0 <= array.min() <= array.max() < images:
        raise UserError(f"{whose}: row numbers must lie between 0 and {images - 1:,}")
    return array.astype(np.intp)

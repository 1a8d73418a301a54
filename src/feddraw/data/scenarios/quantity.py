"""Quantity skew by a power law: client k's size is proportional to k to the power −`power`, images
are random.
"""

from __future__ import annotations

from feddraw.data.scenarios.client_sizes import apportion
from feddraw.data.scenarios.image_pool import ImagePool
from feddraw.data.scenarios.partition import ClientRows, numbered_clients
from feddraw.errors import not_negative


def quantity(pool: ImagePool, scale: float, *, clients: int = 4, power: float = 1.0) -> ClientRows:
    """Random split into clients whose sizes fall by a power law (power 0: equal)."""
    not_negative("power", power)
    pool = pool.sample(scale, clients)
    sizes = apportion(len(pool), [rank**-power for rank in range(1, clients + 1)])
    return numbered_clients(pool.split(sizes))

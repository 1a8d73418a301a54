"""Independent and identically distributed: a random split into clients of equal size."""

from __future__ import annotations

from feddraw.data.scenarios.client_sizes import apportion
from feddraw.data.scenarios.image_pool import ImagePool
from feddraw.data.scenarios.partition import ClientRows, numbered_clients


def iid(pool: ImagePool, scale: float, *, clients: int = 4) -> ClientRows:
    """Random split into equal clients (sizes differ by at most one image)."""
    pool = pool.sample(scale, clients)
    return numbered_clients(pool.split(apportion(len(pool), [1] * clients)))

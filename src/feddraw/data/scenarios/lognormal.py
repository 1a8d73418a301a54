"""Quantity skew as in many consortia: sizes drawn from a lognormal distribution, many small sites
and a few large.
"""

from __future__ import annotations

import numpy as np

from feddraw.data.scenarios.client_sizes import apportion
from feddraw.data.scenarios.image_pool import ImagePool
from feddraw.data.scenarios.partition import ClientRows, numbered_clients
from feddraw.errors import not_negative


def lognormal(
    pool: ImagePool, scale: float, *, clients: int = 20, sigma: float = 1.0, min_size: int = 10
) -> ClientRows:
    """Random split into clients of lognormal sizes (sigma 0: equal), none below `min_size`."""
    from scipy.special import ndtri

    not_negative("sigma", sigma)
    not_negative("min_size", min_size)
    pool = pool.sample(scale, clients, min_size)
    # rounded, so that the last bits of a machine's functions cannot move an image
    logs = sigma * np.round(ndtri(pool.uniform(clients)), 9)
    drawn = np.round(np.exp(logs - logs.max()), 12)
    whole = drawn / drawn.sum() * len(pool)
    # everybody has the least size; the rest follows what the draw gives beyond it
    above = np.maximum(whole - min_size, 0)
    shares = above if above.any() else np.ones(clients)
    sizes = [min_size + part for part in apportion(len(pool) - clients * min_size, shares.tolist())]
    return numbered_clients(pool.split(sizes))

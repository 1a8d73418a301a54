"""Pathological label skew (McMahan et al., 2017): images sorted by class, cut into shards, a few
shards per client.

Images with several findings count as their rarest one. With patient_disjoint patients are sorted
and cut in place of images, so that shards have equal numbers of patients.
"""

from __future__ import annotations

import numpy as np

from feddraw.data.scenarios.image_pool import ImagePool
from feddraw.data.scenarios.partition import ClientRows, numbered_clients
from feddraw.errors import UserError, at_least


def shards(pool: ImagePool, scale: float, *, clients: int = 4, per_client: int = 2) -> ClientRows:
    """Label skew: images sorted by class, in equal shards, `per_client` of them for each client."""
    pool = pool.sample(scale, clients)
    at_least("per_client", per_client, 1)
    units = pool.units
    finding = pool.rarest_findings()
    count = clients * per_client
    if count > len(finding):
        need = f"{clients} clients with {per_client} shards each need {count:,} pieces"
        raise UserError(f"{need}, the data has {len(finding):,}")
    pieces = np.array_split(np.argsort(finding, kind="stable"), count)
    owner = np.empty(len(finding), dtype=np.intp)
    for turn, piece in enumerate(np.argsort(pool.raw(count), kind="stable")):
        owner[pieces[piece]] = turn // per_client
    return numbered_clients([pool.rows[owner[units] == client] for client in range(clients)])

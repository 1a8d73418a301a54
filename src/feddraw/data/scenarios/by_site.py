"""The natural partition: each site that the data names is a client."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np

from feddraw.data.scenarios.image_pool import ImagePool
from feddraw.data.scenarios.partition import ClientRows
from feddraw.errors import UserError

MIN_SITE_IMAGES = 8  # training images that a site should have to be a client


def by_site(pool: ImagePool, scale: float, *, minimum: int = MIN_SITE_IMAGES) -> ClientRows:
    """One client per site in the data; at a smaller scale a random part of each.

    Sites below the minimum are left out. Their validation and test images are not touched.
    """
    if pool.labels.sites is None:
        raise UserError(
            "by_site needs a site for every image, and this data has none: use a table with a site"
            " column"
        )
    site = pool.labels.sites[pool.rows]
    if pool.by_patient:
        visits = set(zip(pool.units.tolist(), site.tolist(), strict=True))
        sites_of_patient = Counter(patient for patient, _ in visits)
        if shared := sum(count > 1 for count in sites_of_patient.values()):
            raise UserError(
                f"{shared:,} patients have images at more than one site: leave patient_disjoint out"
            )
    clients = {str(name): pool.only(site == name).sample(scale).rows for name in np.unique(site)}
    small = {name: len(rows) for name, rows in clients.items() if len(rows) < minimum}
    if len(small) == len(clients):
        most = max(small.values(), default=0)
        raise UserError(
            f"no site has {minimum} training images, the largest has {most}: lower scenario.minimum"
        )
    if small:
        listed = ", ".join(f"{name} ({count})" for name, count in small.items())
        warnings.warn(
            f"left out of the federation, under {minimum} training images: {listed}", stacklevel=2
        )
    return {name: rows for name, rows in clients.items() if name not in small}

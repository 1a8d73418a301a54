"""The natural partition: each site that the data names is a client."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from feddraw.errors import UserError
from feddraw.scenarios.dealing import Deck, Hands


def by_site(deck: Deck, scale: float) -> Hands:
    """One client per site in the data; at a smaller scale a random part of each."""
    if deck.labels.sites is None:
        raise UserError("by_site needs a site for every image, and this data has none: use a table with a site column")
    site = deck.labels.sites[deck.rows]
    if deck.by_patient:
        _require_one_site(deck.units, site)
    return {str(name): deck.only(site == name).sample(scale).rows for name in np.unique(site)}


def _require_one_site(patients: NDArray[np.intp], site: NDArray[np.str_]) -> None:
    visits = Counter(patient for patient, _ in set(zip(patients.tolist(), site.tolist(), strict=True)))
    shared = sum(count > 1 for count in visits.values())
    if shared:
        raise UserError(f"{shared:,} patients have images at more than one site: leave patient_disjoint out")

"""Label skew: the images of each class are spread over the clients in proportions drawn from a
Dirichlet distribution.

The partition of Yurochkin et al. (2019) and NIID-Bench, drawn again until every client has
`min_size` images. Images with several findings count as their rarest one, images with none as a
class of their own. With patient_disjoint patients are spread in place of images, each as the rarest
finding of its images.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feddraw.data.scenarios.image_deck import Deck
from feddraw.data.scenarios.partition import ClientRows, numbered_clients
from feddraw.errors import UserError, not_negative, positive

MOST_DRAWS = 1000


def dirichlet(
    deck: Deck, scale: float, *, clients: int = 4, alpha: float = 0.5, min_size: int = 10
) -> ClientRows:
    """Label skew: each class spread by Dirichlet(alpha); the smaller alpha, the more clients
    differ.
    """
    positive("alpha", alpha)
    not_negative("min_size", min_size)
    deck = deck.sample(scale, clients, min_size)
    units = deck.units
    finding = deck.rarest_findings()
    for _ in range(MOST_DRAWS):
        owner = _spread_by_dirichlet(deck, finding, clients, alpha)[units]
        if np.bincount(owner, minlength=clients).min() >= min_size:
            return numbered_clients([deck.rows[owner == client] for client in range(clients)])
    draws = (
        f"in {MOST_DRAWS:,} draws with alpha {alpha:g} some client always had fewer than"
        f" {min_size:,} images"
    )
    raise UserError(f"{draws}: use a larger alpha, fewer clients or a smaller min_size")


def _spread_by_dirichlet(
    deck: Deck, finding: NDArray[np.intp], clients: int, alpha: float
) -> NDArray[np.intp]:
    """The client of every unit: those of one finding, in drawn order, are cut at the cumulated
    proportions.
    """
    owner = np.empty(len(finding), dtype=np.intp)
    for kind in np.unique(finding):
        members = np.flatnonzero(finding == kind)
        cuts = np.floor(
            np.cumsum(_dirichlet_proportions(deck, clients, alpha))[:-1] * len(members) + 0.5
        )
        owner[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
    return owner


def _dirichlet_proportions(deck: Deck, clients: int, alpha: float) -> NDArray[np.float64]:
    """One draw from the symmetric Dirichlet by inverted gammas, in logarithms because small alphas
    underflow.
    """
    from scipy.special import gammaincinv

    # Gamma(alpha) is Gamma(alpha + 1) times a uniform number to the power 1 / alpha
    logs = (
        np.log(gammaincinv(alpha + 1, deck.uniform(clients)))
        + np.log(deck.uniform(clients)) / alpha
    )
    gammas = np.exp(logs - logs.max())
    # rounded, so that the last bits of a machine's functions cannot move a cut
    return np.asarray(np.round(gammas / gammas.sum(), 9))

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

from feddraw.data.scenarios.image_pool import ImagePool
from feddraw.data.scenarios.partition import ClientRows, numbered_clients
from feddraw.errors import UserError, not_negative, positive

MOST_DRAWS = 1000


def dirichlet(
    pool: ImagePool, scale: float, *, clients: int = 4, alpha: float = 0.5, min_size: int = 10
) -> ClientRows:
    """Label skew: each class spread by Dirichlet(alpha); a smaller alpha makes clients differ."""
    positive("alpha", alpha)
    not_negative("min_size", min_size)
    pool = pool.sample(scale, clients, min_size)
    units = pool.units
    finding = pool.rarest_findings()
    for _ in range(MOST_DRAWS):
        owner = _client_of_each_unit(pool, finding, clients, alpha)[units]
        if np.bincount(owner, minlength=clients).min() >= min_size:
            return numbered_clients([pool.rows[owner == client] for client in range(clients)])
    raise UserError(
        f"in {MOST_DRAWS:,} draws with alpha {alpha:g} some client always had fewer than"
        f" {min_size:,} images: use a larger alpha, fewer clients or a smaller min_size"
    )


def _client_of_each_unit(
    pool: ImagePool, finding: NDArray[np.intp], clients: int, alpha: float
) -> NDArray[np.intp]:
    """The units of one finding, in drawn order, are cut at the cumulated proportions."""
    owner = np.empty(len(finding), dtype=np.intp)
    for kind in np.unique(finding):
        members = np.flatnonzero(finding == kind)
        heaps = np.cumsum(_proportions(pool, clients, alpha))
        cuts = np.floor(heaps[:-1] * len(members) + 0.5)
        owner[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
    return owner


def _proportions(pool: ImagePool, clients: int, alpha: float) -> NDArray[np.float64]:
    """One draw from the symmetric Dirichlet by inverted gammas, in logarithms because small alphas
    underflow.
    """
    from scipy.special import gammaincinv

    # Gamma(alpha) is Gamma(alpha + 1) times a uniform number to the power 1 / alpha
    shape_above_one = np.log(gammaincinv(alpha + 1, pool.uniform(clients)))
    logs = shape_above_one + np.log(pool.uniform(clients)) / alpha
    gammas = np.exp(logs - logs.max())
    # rounded, so that the last bits of a machine's functions cannot move a cut
    return np.asarray(np.round(gammas / gammas.sum(), 9))

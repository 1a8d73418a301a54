"""FedSim: clients with similar gradients form a group, and groups count the same. (Palihawadana et
al., 2022)

Each round the clients' gradients at the sent model are reduced by PCA to 95 % of their variance and
grouped by k-means; within a group clients count by size. The authors deal clients to groups in turn
in round 0 and start k-means by chance; we cluster from round 0 on and start from the points that
lie farthest apart, so that neither chance nor the clients' numbers matter. They divide by the
number of groups asked for, which shrinks the model when one is empty; we divide by those that are
not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddraw.core import GRADIENT, Cohort, Method, Needs, State, Weighted, Weighting, Weights, gram
from feddraw.errors import at_least


def coordinates(products: NDArray[np.float64], share: float = 0.95) -> NDArray[np.float64]:
    """Coordinates of points along the axes that hold this share of their variance, from their
    scalar products.
    """
    centre = np.eye(len(products)) - 1 / len(products)
    variance, axes = np.linalg.eigh(centre @ products @ centre)
    variance = np.maximum(variance[::-1], 0)
    axes = axes[:, ::-1]
    kept = np.searchsorted(np.cumsum(variance), share * variance.sum()) + 1
    return np.asarray(axes[:, :kept] * np.sqrt(variance[:kept]))


def k_means(points: NDArray[np.float64], groups: int) -> NDArray[np.intp]:
    """Each point's group; started from points far from one another."""
    chosen = [int(np.argmax(np.linalg.norm(points - points.mean(axis=0), axis=1)))]
    while len(chosen) < groups:
        chosen.append(int(np.argmax(_distances_to_centres(points, points[chosen]).min(axis=1))))
    member = _distances_to_centres(points, points[chosen]).argmin(axis=1)
    for _ in range(100):
        centres = np.stack([points[member == group].mean(axis=0) for group in np.unique(member)])
        before = member
        member = _distances_to_centres(points, centres).argmin(axis=1)
        if np.array_equal(before, member):
            break
    return np.asarray(member)


def _distances_to_centres(
    points: NDArray[np.float64], centres: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(points[:, None] - centres[None], axis=2))


@dataclass(frozen=True)
class BySimilarGradient(Weighting):
    groups: int = 2

    needs = Needs(sizes=True, asks=(GRADIENT,), cost="O(K² d)")

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        gradients = cohort.extra("gradient")
        points = coordinates(gram(gradients, np.zeros_like(gradients[0])))
        member = k_means(points, min(self.groups, len(points)))
        together = np.bincount(member, cohort.sizes)[member]
        return Weights(cohort.sizes / together / len(np.unique(member))), state


def fedsim(groups: int = 2) -> Method:
    """Groups of clients with similar gradients count the same."""
    return Method(Weighted(BySimilarGradient(at_least("groups", groups, 1))))

"""FedLBW: a client counts by the inverse of its model's loss on the server's images. (Kundroo et
al., 2026)

The images are labelled and balanced: equally many with each finding and with none, taken from
validation (`proxy`). Sizes are ignored. After the paper's description; no code is public.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import Cohort, Method, Needs, State, Weighted, Weighting, Weights, normalize


@dataclass(frozen=True)
class FedLbwWeighting(Weighting):
    needs = Needs(
        layers="all", server_images=True, cost="a pass over the server's images for each client"
    )

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        assert cohort.proxy is not None
        losses = np.array([cohort.proxy.loss(update.model) for update in cohort.updates])
        return normalize(1 / np.maximum(losses, 1e-8)), state


def fedlbw() -> Method:
    """Weights are inverse losses on images at the server."""
    return Method(Weighted(FedLbwWeighting()))

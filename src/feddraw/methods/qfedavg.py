"""q-FedAvg: moves count by a power of the client's loss, under a bound on the curvature. (Li et
al., ICLR 2020)

x <- x + sum F_i^q D_i / sum h_i, with h_i = q F_i^(q-1) L |D_i|² + F_i^q and F the loss at the sent
model (the authors' formula divided by L). They take L = 1 / learning rate, which fits plain SGD;
under Adam that makes the step vanish, so L is a setting here. q = 0 is uniform averaging for every
L. In a mixture both sums are weighted, so that the bound is that of the weighted objective.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import ONE_SUM, Cohort, Column, Local, Method, Server, Weights
from feddraw.errors import not_negative, positive
from feddraw.methods.uniform import Uniform


@dataclass(frozen=True)
class QFedAvgServer(Server):
    q: float = 0.1
    curvature: float = 1.0

    asks = ("loss",)
    secure = ONE_SUM
    streams = False
    proportional = False

    def coefficients(self, cohort: Cohort, weights: Weights) -> Column:
        return np.asarray(weights.values * cohort.factors(self) / cohort.mean_term(self, weights))

    def factors(self, cohort: Cohort) -> Column:
        return np.asarray((cohort.number("loss") + 1e-10) ** self.q)

    def terms(self, cohort: Cohort) -> Column:
        """The bound h of each client."""
        losses = cohort.number("loss") + 1e-10
        squares = cohort.distances**2
        return np.asarray(
            self.q * losses ** (self.q - 1) * self.curvature * squares + losses**self.q
        )


def qfedavg(q: float = 0.1, curvature: float = 1.0) -> Method:
    """Moves count by a power of the loss."""
    return Method(
        Local(), Uniform(), QFedAvgServer(not_negative("q", q), positive("curvature", curvature))
    )

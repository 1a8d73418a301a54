"""q-FedAvg: moves count by a power of the client's loss, under a bound on the curvature.

(Li et al., ICLR 2020.) x <- x + sum F_i^q D_i / sum h_i, with h_i = q F_i^(q-1) L |D_i|² + F_i^q
and F the loss at the sent model (the authors' formula divided by L). They take L = 1 / learning
rate, which fits plain SGD; under Adam that makes the step vanish, so L is a setting here. q = 0 is
uniform averaging for every L. In a mixture both sums are weighted, so that the bound is that of the
weighted objective.
"""

from __future__ import annotations

from dataclasses import dataclass

from feddraw.core import LOSS, ClientView, Equal, Factored, Method, Needs, Weighted
from feddraw.errors import not_negative, positive

SMALLEST_LOSS = 1e-10  # added to every loss, so that a power below zero is finite


@dataclass(frozen=True)
class QFedAvgServer(Factored):
    q: float = 0.1
    curvature: float = 1.0

    @property
    def needs(self) -> Needs:
        return Needs(asks=(LOSS,))

    def factor(self, client: ClientView) -> float:
        loss = client.number("loss") + SMALLEST_LOSS
        return float(loss**self.q)

    def term(self, client: ClientView) -> float:
        """The bound h of the client."""
        loss = client.number("loss") + SMALLEST_LOSS
        square = client.distance**2
        return float(self.q * loss ** (self.q - 1) * self.curvature * square + loss**self.q)

    def scale_by(self, mean_term: float) -> float:
        return 1 / mean_term


def qfedavg(q: float = 0.1, curvature: float = 1.0) -> Method:
    """Moves count by a power of the loss."""
    server = QFedAvgServer(not_negative("q", q), positive("curvature", curvature))
    return Method(Weighted(Equal(), server))

"""FedProx: local training is pulled back towards the received model. (Li et al., MLSys 2020)

The term is mu/2 |w - w0|², squared, over parameters only. The paper's partial work for slow devices
is not part of it here. mu is not reported in FedDRAW's comparison; with Adam at a small step, mu
below 0.1 is FedAvg to within noise.
"""

from __future__ import annotations

from dataclasses import dataclass

from feddraw.core import BySize, Client, Correction, Job, Local, Memory, Method, Weighted
from feddraw.errors import not_negative


@dataclass(frozen=True)
class Proximal(Local):
    mu: float = 0.01

    def begin(self, job: Job, memory: Memory, client: Client) -> Correction:
        return Correction(pull=self.mu)


def fedprox(mu: float = 0.01) -> Method:
    """FedAvg with a pull towards the received model."""
    return Method(Weighted(BySize()), Proximal(not_negative("mu", mu)))

"""FedAdagrad: the average move is a gradient for Adagrad at the server. (Reddi et al., ICLR 2021)

v <- v + D², x <- x + lr m / (sqrt(v) + tau); m is the move itself unless beta1 is set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import Method, Vector
from feddraw.methods.fedadam import AdaptiveServer, with_adaptive_server


@dataclass(frozen=True)
class AdagradServer(AdaptiveServer):
    def square(self, before: Vector, move: Vector) -> Vector:
        return np.asarray(before + move**2)


def fedadagrad(server_lr: float = 0.01, beta1: float = 0.0, tau: float = 1e-3) -> Method:
    """FedAvg with Adagrad at the server."""
    return with_adaptive_server(AdagradServer, server_lr, beta1, 0.0, tau)

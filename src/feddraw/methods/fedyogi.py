"""FedYogi: as FedAdam, but the second moment changes by no more than a fixed share. (Reddi et al.,
ICLR 2021)

v <- v - (1 - beta2) D² sign(v - D²).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import Method, Vector
from feddraw.methods.fedadam import AdaptiveServer, with_adaptive_server


@dataclass(frozen=True)
class YogiServer(AdaptiveServer):
    def square(self, before: Vector, move: Vector) -> Vector:
        return np.asarray(before - (1 - self.beta2) * move**2 * np.sign(before - move**2))


def fedyogi(
    server_lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> Method:
    """FedAvg with Yogi at the server."""
    return with_adaptive_server(YogiServer, server_lr, beta1, beta2, tau)

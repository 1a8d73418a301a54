"""FedAvg: a client counts by its number of images. (McMahan et al., AISTATS 2017)"""

from __future__ import annotations

from feddraw.core import BySize, Method, Weighted


def fedavg() -> Method:
    """The average of the clients, weighted by size."""
    return Method(Weighted(BySize()))

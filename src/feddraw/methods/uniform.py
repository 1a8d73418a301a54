"""Uniform averaging: every client counts the same. The control that FedDRAW anneals to."""

from __future__ import annotations

from feddraw.core import Equal, Method, Weighted


def uniform() -> Method:
    """The plain average of the clients."""
    return Method(Weighted(Equal()))

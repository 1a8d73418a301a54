"""For federations on NVIDIA FLARE: FedDRAW or any method as the aggregator of a recipe,
ScatterAndGather or a swarm.

FLARE is an extra (`pip install 'feddraw[nvflare]'`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from feddraw.errors import UserError
from feddraw.system.machine import installed

if not installed("nvflare"):
    raise UserError("feddraw.nvflare needs NVIDIA FLARE: pip install 'feddraw[nvflare]'")

from feddraw.nvflare.aggregator import FedDRAW, MethodAggregator

if TYPE_CHECKING:
    from feddraw.nvflare.site import Site

__all__ = ["FedDRAW", "MethodAggregator", "Site"]


def __getattr__(name: str) -> Any:
    """The client's half only when it is asked for: it needs torch, and a server does not."""
    if name == "Site":
        from feddraw.nvflare.site import Site

        return Site
    raise AttributeError(f"module 'feddraw.nvflare' has no '{name}'")

"""For federations on Flower: FedDRAW in place of FedAvg, any method as a Strategy, clients that
train by our rules.

flwr is an extra (`pip install 'feddraw[flower]'`); Ray is needed only for Flower's own simulation.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from feddraw.errors import UserError
from feddraw.system.machine import installed

if not installed("flwr"):
    raise UserError("feddraw.flower needs Flower: pip install 'feddraw[flower]'")

from feddraw.flower.array_records import record, state_dict
from feddraw.flower.flat_exchange import flat_mod
from feddraw.flower.secure_site import secure_mod
from feddraw.flower.strategy import FedDRAW, MethodStrategy
from feddraw.server.round import RoundRecord

if TYPE_CHECKING:
    from feddraw.flower.client_app import Site, client

__all__ = [
    "FedDRAW",
    "MethodStrategy",
    "RoundRecord",
    "Site",
    "client",
    "flat_mod",
    "record",
    "secure_mod",
    "state_dict",
]


def __getattr__(name: str) -> Any:
    """The client's half only when it is asked for: it needs torch, and a server does not."""
    if name in ("Site", "client"):
        return getattr(import_module("feddraw.flower.client_app"), name)
    raise AttributeError(f"module 'feddraw.flower' has no '{name}'")

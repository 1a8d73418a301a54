"""Each client for itself: the local-only reference.

Models go up, so that the ledger and the gate see them, but nobody starts from the common one.
"""

from __future__ import annotations

from feddraw.core import Equal, Method, OnItsOwn, Weighted


def alone() -> Method:
    """Each client for itself: the local-only reference."""
    return Method(Weighted(Equal()), OnItsOwn())

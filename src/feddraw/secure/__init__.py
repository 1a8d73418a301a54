"""Secure aggregation: the server learns the sum of what the clients send, and no client's own part of it.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017). `docs/privacy.md`
says what it protects and what it does not. cryptography is an extra
(`pip install 'feddraw[secure]'`); Flower brings it.
"""

from __future__ import annotations

from importlib.util import find_spec

from feddraw.errors import UserError

if find_spec("cryptography") is None:
    raise UserError("secure aggregation needs cryptography: pip install 'feddraw[secure]'")

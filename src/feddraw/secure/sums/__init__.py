"""Secure aggregation: the server learns the sum of what the clients send, and no client's own part
of it.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017).
`docs/privacy.md` says what it protects and what it does not. It needs the extra `secure`
(cryptography, blake3).

A sum has a `SecureSumClient` at each client and a `SecureSumServer` at the server. The stages, each
a message from every client to the server and one back: 0 keys, 1 shares, 2 masked values, 3
signatures under the list of those in the sum, 4 the shares that open it. Keys and shares can travel
with the answers of an earlier round. With K clients asked, up to K - t may fall silent, at whatever
stages; t = ⌊2K/3⌋ + 1.
"""

from __future__ import annotations

from importlib.util import find_spec

from feddraw.errors import UserError

if find_spec("cryptography") is None:
    raise UserError("secure aggregation needs cryptography: pip install 'feddraw[secure]'")

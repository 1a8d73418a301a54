"""The hash of models and masked words, which are tens of megabytes: BLAKE3.

Everything else that is signed is hashed by SHA-256. Where a processor has no instructions for it,
SHA-256 of all clients' words took a third of a round; BLAKE3 is some ten times as fast.
"""

from __future__ import annotations

from collections.abc import Iterable

from feddraw.errors import UserError


def large_digest(parts: Iterable[bytes | memoryview]) -> bytes:
    """(32 bytes) of the parts, one after another, as if they were one."""
    try:
        from blake3 import blake3
    except ImportError:
        raise UserError("secure aggregation needs blake3: pip install 'feddraw[secure]'") from None
    digest = blake3()
    for part in parts:
        digest.update(part)
    return digest.digest()

"""How a message of a secure sum is written, read and verified: a row of fields, each with its length before it."""

from __future__ import annotations

from collections.abc import Iterable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from feddraw.errors import UserError

LENGTH_BYTES = 4  # before each field of a message


class Refused(UserError):
    """A message that this side does not accept; nothing was done with it."""


def pack(*fields: bytes) -> bytes:
    return b"".join(len(field).to_bytes(LENGTH_BYTES, "little") + field for field in fields)


def unpack(content: bytes, count: int) -> list[bytes]:
    """The fields of a message, all of it and nothing beside it."""
    fields, position = [], 0
    while position < len(content):
        start = position + LENGTH_BYTES
        position = start + int.from_bytes(content[position:start], "little")
        if position > len(content):
            raise Refused("a message of a secure sum is cut off")
        fields.append(content[start:position])
    if len(fields) != count:
        raise Refused(f"a message of a secure sum has {len(fields)} fields instead of {count}")
    return fields


def listed(names: Iterable[str]) -> bytes:
    """Names in order, whatever order they came in."""
    return pack(*(name.encode() for name in sorted(names)))


def verify(key: Ed25519PublicKey, signature: bytes, statement: bytes, what: str) -> None:
    try:
        key.verify(signature, statement)
    except InvalidSignature:
        raise Refused(f"{what} has a wrong signature") from None

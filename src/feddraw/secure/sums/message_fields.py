"""How a message of a secure sum is written and read: a row of fields, each with its length before
it.
"""

from __future__ import annotations

from collections.abc import Iterable

from feddraw.errors import UserError

LENGTH_BYTES = 4  # before each field of a message


class SecureSumRefused(UserError):
    """A message that this side does not accept; nothing was done with it."""


def pack_fields(*fields: bytes) -> bytes:
    return b"".join(len(field).to_bytes(LENGTH_BYTES, "little") + field for field in fields)


def unpack_fields(content: bytes, count: int) -> list[bytes]:
    """The fields of a message, all of it and nothing beside it."""
    fields: list[bytes] = []
    position = 0
    while position < len(content):
        if len(fields) == count:
            raise SecureSumRefused(f"a message of a secure sum has more than {count} fields")
        start = position + LENGTH_BYTES
        position = start + int.from_bytes(content[position:start], "little")
        if position > len(content):
            raise SecureSumRefused("a message of a secure sum is cut off")
        fields.append(content[start:position])
    if len(fields) != count:
        raise SecureSumRefused(
            f"a message of a secure sum has {len(fields)} fields instead of {count}"
        )
    return fields


def pack_names(names: Iterable[str]) -> bytes:
    """Names in order, whatever order they came in."""
    return pack_fields(*(name.encode() for name in sorted(names)))

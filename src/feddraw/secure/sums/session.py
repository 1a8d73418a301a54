"""What all messages of one secure sum are about, and what is signed in them.

Every signature covers the purpose, the digest of everything that the sites agreed on, the name of
the sum, the attempt, the sender and the kind of message; from the shares on also the `context`, a
hash of who was asked and all their keys. So a message that was made for anything else never counts
here, and sites that were sent different things never share a sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from feddraw.errors import RunFailed, UserError
from feddraw.secure.sums.fixed_point import Words
from feddraw.secure.sums.large_digest import large_digest
from feddraw.secure.sums.message_fields import pack_fields, pack_names

PURPOSE = "feddraw secure sum 4"
FEWEST_SUMMED = 3  # with two, each learns the other's part from the sum


class SecureSumFailed(RunFailed):
    """Too few clients are left to open the sum.

    Nothing is known of it; it can be tried again with fresh keys.
    """


def session_threshold(members: int) -> int:
    """How many must take part to the end: more than two thirds of the members."""
    return 2 * members // 3 + 1


@dataclass(frozen=True)
class SessionId:
    """Which sum: all that is known before it is known who takes part."""

    digest: bytes  # of everything that the sites of this sum use: they sign it with their keys
    sum: str
    attempt: int = 0

    @cached_property
    def _head(self) -> bytes:
        facts = (PURPOSE.encode(), self.digest, self.sum.encode(), str(self.attempt).encode())
        return pack_fields(*facts)

    def statement(self, kind: str, sender: str, *fields: bytes) -> bytes:
        """The bytes that are signed."""
        return self._head + pack_fields(kind.encode(), sender.encode(), *fields)

    def __str__(self) -> str:
        return f"the secure sum '{self.sum}'"


@dataclass(frozen=True)
class Session(SessionId):
    """One secure sum, one attempt, with all who were asked for it."""

    members: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.members)) != len(self.members):
            raise UserError("a secure sum needs clients of different names")
        if len(self.members) < FEWEST_SUMMED:
            raise UserError(
                f"a secure sum needs at least {FEWEST_SUMMED} clients, not {len(self.members)}"
            )

    @property
    def threshold(self) -> int:
        return session_threshold(len(self.members))


@dataclass(frozen=True)
class SessionContext:
    """A sum with all who were asked for it and their keys: what is signed from the shares on."""

    session: SessionId
    advertised: Mapping[str, bytes]  # by client that was asked; empty where it sent no keys
    digest: bytes

    @classmethod
    def of(cls, session: SessionId, advertised: Mapping[str, bytes]) -> SessionContext:
        names = sorted(advertised)
        fields = [field for name in names for field in (name.encode(), advertised[name])]
        digest = hashlib.sha256(session.statement("context", "", *fields)).digest()
        return cls(session, {name: advertised[name] for name in names}, digest)

    @cached_property
    def points(self) -> dict[str, int]:
        """Where each client's shares lie on the polynomials."""
        return {name: number for number, name in enumerate(self.advertised, start=1)}

    def shares(self, sender: str, closed: Mapping[str, bytes]) -> bytes:
        """What a sender signs: all its shares, each under the name of its receiver."""
        fields = [field for name in sorted(closed) for field in (name.encode(), closed[name])]
        every_share = hashlib.sha256(pack_fields(*fields)).digest()
        return self.session.statement("shares", sender, self.digest, every_share)

    def masked(self, sender: str, words: Words) -> bytes:
        digest = large_digest([np.ascontiguousarray(words, "<u8").view(np.uint8).data])
        return self.session.statement("masked", sender, self.digest, digest)

    def masks(self, announced: bytes) -> bytes:
        """What masks are made from beside their keys: those of clients that got different
        announcements do not cancel.
        """
        return hashlib.sha256(self.session.statement("masks", "", self.digest, announced)).digest()

    def roll(self, sharers: Iterable[str], survivors: Iterable[str], announced: bytes) -> bytes:
        """A hash of who sent shares, who is in the sum, and what was announced about it."""
        lists = pack_fields(pack_names(sharers), pack_names(survivors), announced)
        return hashlib.sha256(lists).digest()

    def survivors_statement(self, sender: str, roll: bytes) -> bytes:
        return self.session.statement("survivors", sender, self.digest, roll)

    def revealed(self, sender: str, roll: bytes, shares: Sequence[bytes]) -> bytes:
        opened = hashlib.sha256(pack_fields(*shares)).digest()
        return self.session.statement("revealed", sender, self.digest, roll, opened)

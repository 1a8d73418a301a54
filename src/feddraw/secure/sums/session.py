"""What all messages of one secure sum are about, and what is signed in them.

Every signature covers the purpose, the run, the round, the name of the sum, the attempt, the sender
and the kind of message; from the shares on also the `context`, a hash of who was asked and all
their keys. So a message that was made for anything else never counts here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from feddraw.errors import RunFailed, UserError
from feddraw.secure.sums.fixed_point import Words
from feddraw.secure.sums.message_fields import pack_fields, pack_names

PURPOSE = "feddraw secure sum 1"
FEWEST_SUMMED = 3  # with two, each learns the other's part from the sum


class SecureSumFailed(RunFailed):
    """Too few clients are left to open the sum.

    Nothing is known of it; it can be tried again with fresh keys.
    """


def session_threshold(asked: int) -> int:
    """How many must take part to the end: more than two thirds of those asked."""
    return 2 * asked // 3 + 1


@dataclass(frozen=True)
class SessionId:
    """Which sum: all that is known before it is known who takes part."""

    run: str
    round: int
    sum: str
    attempt: int

    def statement(self, kind: str, sender: str, *fields: bytes) -> bytes:
        """The bytes that are signed."""
        facts = (PURPOSE, self.run, str(self.round), self.sum, str(self.attempt), kind, sender)
        return pack_fields(*(fact.encode() for fact in facts), *fields)

    def __str__(self) -> str:
        again = f", attempt {self.attempt}" if self.attempt else ""
        return f"the secure sum '{self.sum}' of round {self.round}{again}"


@dataclass(frozen=True)
class Session(SessionId):
    """One secure sum, one attempt, with all who were asked for it."""

    members: tuple[str, ...]

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

    about: SessionId
    advertised: Mapping[str, bytes]  # by client that was asked; empty where it sent no keys
    digest: bytes

    @classmethod
    def of(cls, about: SessionId, advertised: Mapping[str, bytes]) -> SessionContext:
        names = sorted(advertised)
        fields = [field for name in names for field in (name.encode(), advertised[name])]
        digest = hashlib.sha256(about.statement("context", "", *fields)).digest()
        return cls(about, {name: advertised[name] for name in names}, digest)

    @property
    def points(self) -> dict[str, int]:
        """Where each client's shares lie on the polynomials."""
        return {name: number for number, name in enumerate(self.advertised, start=1)}

    def shares(self, sender: str, receiver: str, closed: bytes) -> bytes:
        return self.about.statement("shares", sender, self.digest, receiver.encode(), closed)

    def masked(self, sender: str, words: Words) -> bytes:
        digest = hashlib.sha256(np.ascontiguousarray(words, "<u8").data).digest()
        return self.about.statement("masked", sender, self.digest, digest)

    def survivors(
        self, sender: str, sharers: Iterable[str], survivors: Iterable[str], agreed: bytes
    ) -> bytes:
        sharing, summed = pack_names(sharers), pack_names(survivors)
        return self.about.statement("survivors", sender, self.digest, sharing, summed, agreed)

    def revealed(self, sender: str, survivors: Iterable[str], shares: Sequence[bytes]) -> bytes:
        return self.about.statement(
            "revealed", sender, self.digest, pack_names(survivors), pack_fields(*shares)
        )

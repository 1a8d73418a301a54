"""The messages of a secure round, as values; each transport writes and reads them in its own way.

`driver` says who sends what, in which order, and what each signature covers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from feddraw.secure.rounds.terms import Announcement, Labels, Statement
from feddraw.secure.sums.client import Shares
from feddraw.secure.sums.fixed_point import Words

# ---------------------------------------------------------------------------- from server to site


@dataclass(frozen=True)
class Again:
    """Try the sums of what was agreed once more, with fresh keys."""

    digest: bytes
    attempt: int


@dataclass(frozen=True)
class Meet:
    """The keys of all who were asked, by sum and name; empty where none came. Then train."""

    keys: Mapping[str, Mapping[str, bytes]]


@dataclass(frozen=True)
class Weigh:
    """Under a policy: say how you weigh yourself."""

    announcement: Announcement


@dataclass(frozen=True)
class Add:
    """The others' shares for this site: mask your part of a sum."""

    sum: str
    announcement: Announcement
    shares: Mapping[str, bytes]  # by sender


@dataclass(frozen=True)
class Sign:
    """Who is in a sum: sign the list."""

    sum: str
    survivors: tuple[str, ...]


@dataclass(frozen=True)
class Reveal:
    """The signatures under the list: reveal the shares that open the sum."""

    sum: str
    survivors: tuple[str, ...]
    signatures: Mapping[str, bytes]  # by signer


Request = Again | Meet | Weigh | Add | Sign | Reveal

# ---------------------------------------------------------------------------- from site to server


@dataclass(frozen=True)
class Keys:
    """One-time keys for every sum, signed under the digest of all that the site was sent."""

    digest: bytes
    keys: Mapping[str, bytes]  # by sum


@dataclass(frozen=True, eq=False)
class Joined:
    """What a site says of itself, and shares for the others, once enough have agreed."""

    size: float
    labelled: Labels
    shares: Mapping[str, Shares]  # by sum


@dataclass(frozen=True, eq=False)
class Masked:
    """A site's words under masks, its signature under them, and what it says beside them."""

    words: Words
    seal: bytes | None = None  # None: within one process
    statement: Statement | None = None


@dataclass(frozen=True)
class Signed:
    """A site's signature under who is in the sum."""

    signature: bytes


@dataclass(frozen=True)
class Revealed:
    """A site's shares that open the sum."""

    shares: bytes


@dataclass(frozen=True)
class Refusal:
    """Why a site does not answer, or why its answer cannot be read."""

    reason: str = field(default="")


Answer = Keys | Joined | Statement | Masked | Signed | Revealed | Refusal

"""The server's half of one secure sum: it passes messages on, adds what arrives, and opens the sum.

There are five stages, each with messages that are taken (`take_…`) until the stage is closed
(`close_…`, at last `open_total`). Who has not sent its message by then is left out; a message that
is refused counts as not sent. To close a stage again gives the same answer again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from feddraw.secure.sums import shamir
from feddraw.secure.sums.client import Shares
from feddraw.secure.sums.fixed_point import Words
from feddraw.secure.sums.masks import Mask, apply_masks, pair_mask, self_mask
from feddraw.secure.sums.message_fields import SecureSumRefused, unpack_fields
from feddraw.secure.sums.one_time_keys import (
    OneTimePublicKeys,
    public_half,
    read_one_time_keys,
    seed_commitment,
)
from feddraw.secure.sums.session import FEWEST_SUMMED, SecureSumFailed, Session, SessionContext
from feddraw.secure.sums.signing_keys import SiteDirectory


class Stage(IntEnum):
    """The stages of a sum, in order."""

    KEYS = 0
    SHARES = 1
    VALUES = 2
    SIGNATURES = 3
    OPENING = 4

    @property
    def messages(self) -> str:
        """What clients send in it."""
        return "opened shares" if self is Stage.OPENING else self.name.lower()


class SecureSumServer:
    """One secure sum, one attempt. It holds one vector, however many clients there are, and one
    more for each wrong length that somebody sends.
    """

    def __init__(self, session: Session, directory: SiteDirectory | None = None) -> None:
        self.session = session
        self.announced = b""  # a hash of what was announced about the values that clients add
        self._directory = directory
        self._stage = Stage.KEYS
        self._messages: dict[str, bytes] = {}  # of the first stage, by client
        self._keys: dict[str, OneTimePublicKeys] = {}
        self._context = SessionContext.of(session, {})
        self._shares: dict[str, Mapping[str, bytes]] = {}  # by sender, then receiver
        self._lengths: dict[str, int] = {}  # by client, how many words it sent
        self._sums: dict[int, Words] = {}  # of those who sent as many
        self._summed: set[str] = set()  # who is in the sum, once that is settled
        self._signatures: dict[str, bytes] = {}
        self._revealed: dict[str, list[bytes]] = {}
        self._opened = False
        self._roll = b""  # a hash of who is in the sum, once that is settled

    # -------------------------------------------------------------------------------------- 0: keys

    def take_advertised(self, name: str, content: bytes) -> None:
        self._expect(Stage.KEYS, name, self.session.members, self._keys)
        self._keys[name] = read_one_time_keys(self.session, name, content, self._directory)
        self._messages[name] = content

    def close_keys(self) -> dict[str, bytes]:
        """For every client that sent its keys: the keys of all who were asked, empty where none
        came.
        """
        if self._close(Stage.KEYS, len(self._keys)):
            sent = {name: self._messages.get(name, b"") for name in self.session.members}
            self._context = SessionContext.of(self.session, sent)
        return dict(self._context.advertised)

    # ------------------------------------------------------------------------------------ 1: shares

    def take_shares(self, name: str, shares: Shares) -> None:
        self._expect(Stage.SHARES, name, self._keys, self._shares)
        if set(shares.closed) != set(self._keys) - {name}:
            raise SecureSumRefused(
                f"{name} sent shares for other clients than those that sent keys"
            )
        statement = self._context.shares(name, shares.closed)
        what = f"the message with shares of {name}"
        self._keys[name].verify(shares.signature, statement, what)
        self._shares[name] = shares.closed

    def close_shares(self) -> tuple[str, ...]:
        """Who sent shares, and is asked for values."""
        self._close(Stage.SHARES, len(self._shares))
        return tuple(sorted(self._shares))

    def shares_for(self, name: str) -> dict[str, bytes]:
        """What the others sent for one of the sharers."""
        if name not in self.close_shares():
            raise SecureSumRefused(f"{name} sent no shares and gets none")
        return {sender: shares[name] for sender, shares in self._shares.items() if sender != name}

    # ------------------------------------------------------------------------------------ 2: values

    def take_masked(self, name: str, words: Words, seal: bytes | None = None) -> None:
        """Added at once; `seal` is the client's signature under the words, where it sends one."""
        self._expect(Stage.VALUES, name, self._shares, self._lengths)
        if words.dtype != np.uint64 or words.ndim != 1:
            raise SecureSumRefused(f"{name} sent something else than a vector of 64-bit words")
        if seal is not None:
            self._keys[name].verify(
                seal, self._context.masked(name, words), f"the masked values of {name}"
            )
        length = len(words)
        if length in self._sums:
            self._sums[length] += words
        else:
            self._sums[length] = words.copy()
        self._lengths[name] = length

    def close_values(self) -> tuple[str, ...]:
        """Who is in the sum: those who sent as many words as most."""
        fitting = self._lengths.keys() - self.misfits.keys()
        if self._close(Stage.VALUES, len(fitting)):
            self._summed = set(fitting)
            self._roll = self._context.roll(self._shares, self._summed, self.announced)
        return tuple(sorted(self._summed))

    @property
    def misfits(self) -> dict[str, str]:
        """By name, why words that came are not in the sum."""
        counts = Counter(self._lengths.values())
        usual = max(counts, key=lambda length: counts[length], default=0)
        return {
            name: f"{name} sent {length:,} words, the others {usual:,}"
            for name, length in self._lengths.items()
            if length != usual
        }

    # -------------------------------------------------------------------------------- 3: signatures

    def take_signature(self, name: str, signature: bytes) -> None:
        self._expect(Stage.SIGNATURES, name, self._summed, self._signatures)
        statement = self._context.survivors_statement(name, self._roll)
        self._keys[name].verify(signature, statement, f"the list of clients that {name} signed")
        self._signatures[name] = signature

    def close_signatures(self) -> dict[str, bytes]:
        """By client, its signature under the list of those who are in the sum."""
        self._close(Stage.SIGNATURES, len(self._signatures))
        return dict(self._signatures)

    # ----------------------------------------------------------------------------------- 4: opening

    def take_revealed(self, name: str, content: bytes) -> None:
        self._expect(Stage.OPENING, name, self._signatures, self._revealed)
        *shares, signature = unpack_fields(content, len(self._shares) + 1)
        statement = self._context.revealed(name, self._roll, shares)
        self._keys[name].verify(signature, statement, f"the message with opened shares of {name}")
        self._revealed[name] = shares

    def open_total(self) -> Words:
        """The sum without its masks."""
        self._close(Stage.OPENING, len(self._revealed))
        length = self._lengths[min(self._summed)]  # the same for all who are in the sum
        summed = self._sums[length]
        if not self._opened:
            apply_masks([mask.opposite for mask in self._left_in_sum()], summed)
            self._opened = True
        return summed

    def _left_in_sum(self) -> list[Mask]:
        """Each summed client's own mask, and the masks that it shares with those whose values did
        not come.
        """
        secrets = self._joined()
        digest = self._context.masks(self.announced)
        survivors = sorted(self._summed)
        masks = [self_mask(secrets[name], digest, name) for name in survivors]
        for gone in sorted(set(self._shares) - self._summed):
            private = X25519PrivateKey.from_private_bytes(secrets[gone])
            for name in survivors:
                mask = pair_mask(private, self._keys[name].masking, digest, gone, name)
                masks.append(mask.opposite)  # the summed client's side of it
        return masks

    def _joined(self) -> dict[str, bytes]:
        """The seed of each client in the sum, the masking key of each that is not.

        Where the shares of as many as are needed do not fit, one of those who revealed them may
        have lied: each is left out in turn, if enough others are there.
        """
        helpers = sorted(self._revealed)
        needed = self.session.threshold
        choices = [helpers[:needed]]
        if len(helpers) > needed:
            choices += [
                [helper for helper in helpers if helper != left_out][:needed]
                for left_out in helpers[:needed]
            ]
        failures = []
        for chosen in choices:
            try:
                return self._joined_by(chosen)
            except SecureSumFailed as failure:
                failures.append(failure)
        raise failures[0]

    def _joined_by(self, helpers: Sequence[str]) -> dict[str, bytes]:
        """The same from the shares that these clients revealed."""
        points = self._context.points
        factors = shamir.lagrange_factors([points[helper] for helper in helpers])
        secrets = {}
        for number, name in enumerate(sorted(self._shares)):
            shares = {points[helper]: self._revealed[helper][number] for helper in helpers}
            try:
                secret = shamir.join_shares(shares, factors)
            except ValueError:
                secret = b""
            if not self._is_secret_of(name, secret):
                raise SecureSumFailed(
                    f"{self.session}: the shares of {name} do not fit: wrong ones were sent"
                )
            secrets[name] = secret
        return secrets

    def _is_secret_of(self, name: str, secret: bytes) -> bool:
        if not secret:
            return False
        if name in self._summed:
            return seed_commitment(self.session, name, secret) == self._keys[name].commitment
        return public_half(secret) == self._keys[name].masking

    # --------------------------------------------------------------------------------------- checks

    def _expect(
        self, stage: Stage, name: str, senders: Collection[str], taken: Collection[str]
    ) -> None:
        """Refuse a message that comes too early, too late, twice, or from somebody who is not asked
        for it.
        """
        what = stage.messages
        if stage != self._stage:
            when = "too late" if stage < self._stage else "too early"
            raise SecureSumRefused(f"{self.session}: the {what} of {name} came {when}")
        if name not in senders:
            raise SecureSumRefused(f"{self.session}: {name} was not asked for {what}")
        if name in taken:
            raise SecureSumRefused(f"{self.session}: {name} sent {what} twice")

    def _close(self, stage: Stage, senders: int) -> bool:
        """Whether the stage was still open; too few clients end the sum."""
        if self._stage < stage:
            raise SecureSumRefused(f"{self.session}: the {stage.messages} are not there yet")
        if senders < max(self.session.threshold, FEWEST_SUMMED):
            members = len(self.session.members)
            raise SecureSumFailed(
                f"{self.session} failed: {stage.messages} came from {senders} of {members}"
                f" clients, {self.session.threshold} are needed"
            )
        if self._stage > stage:
            return False
        if stage is not Stage.OPENING:
            self._stage = Stage(stage + 1)
        return True

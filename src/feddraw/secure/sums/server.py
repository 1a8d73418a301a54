"""The server's half of one secure sum: it passes messages on, adds what arrives, and opens the sum.

Reading what a stage gives (`advertised`, `shares_for`, `survivors`, `signatures`, `total`) closes
the stage: who has not sent its message by then is left out. A message that is refused counts as not
sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

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

SERVER_STAGES = ("keys", "shares", "values", "signatures", "opened shares")


class SecureSumServer:
    """One secure sum, one attempt. It holds one vector, however many clients there are."""

    def __init__(self, session: Session, directory: SiteDirectory | None = None) -> None:
        self.session = session
        self.told = b""  # what the clients were told about the values that they add, as a hash
        self._directory = directory
        self._stage = 0
        self._messages: dict[str, bytes] = {}  # of the first stage, by client
        self._keys: dict[str, OneTimePublicKeys] = {}
        self._context = SessionContext.of(session, {})
        self._shares: dict[str, Mapping[str, bytes]] = {}  # by sender, then receiver
        self._summed: set[str] = set()
        self._sum: Words | None = None
        self._signatures: dict[str, bytes] = {}
        self._revealed: dict[str, list[bytes]] = {}
        self._opened = False
        self._roll = b""  # a hash of who is in the sum, once that is settled

    # -------------------------------------------------------------------------------------- 0: keys

    def take_advertised(self, name: str, content: bytes) -> None:
        self._expect(0, name, self.session.members, self._keys)
        self._keys[name] = read_one_time_keys(self.session, name, content, self._directory)
        self._messages[name] = content

    @property
    def advertised(self) -> dict[str, bytes]:
        """For every client that sent its keys: the keys of all who were asked, empty where none
        came.
        """
        if self._close(0, len(self._keys)):
            sent = {name: self._messages.get(name, b"") for name in self.session.members}
            self._context = SessionContext.of(self.session, sent)
        return dict(self._context.advertised)

    # ------------------------------------------------------------------------------------ 1: shares

    def take_shares(self, name: str, shares: Shares) -> None:
        self._expect(1, name, self._keys, self._shares)
        if set(shares.closed) != set(self._keys) - {name}:
            raise SecureSumRefused(
                f"{name} sent shares for other clients than those that sent keys"
            )
        statement = self._context.shares(name, shares.closed)
        what = f"the message with shares of {name}"
        self._keys[name].verify(shares.signature, statement, what)
        self._shares[name] = shares.closed

    @property
    def sharers(self) -> tuple[str, ...]:
        """Who sent shares, and is asked for values."""
        self._close(1, len(self._shares))
        return tuple(sorted(self._shares))

    def shares_for(self, name: str) -> dict[str, bytes]:
        """What the others sent for one of the sharers."""
        if name not in self.sharers:
            raise SecureSumRefused(f"{name} sent no shares and gets none")
        return {sender: shares[name] for sender, shares in self._shares.items() if sender != name}

    # ------------------------------------------------------------------------------------ 2: values

    def take_masked(self, name: str, words: Words, seal: bytes | None = None) -> None:
        """Added at once; `seal` is the client's signature under the words, where it sends one."""
        self._expect(2, name, self._shares, self._summed)
        if words.dtype != np.uint64 or words.ndim != 1:
            raise SecureSumRefused(f"{name} sent something else than a vector of 64-bit words")
        if self._sum is not None and words.shape != self._sum.shape:
            raise SecureSumRefused(
                f"{name} sent {len(words):,} words, the others {len(self._sum):,}"
            )
        if seal is not None:
            self._keys[name].verify(
                seal, self._context.masked(name, words), f"the masked values of {name}"
            )
        if self._sum is None:
            self._sum = words.copy()
        else:
            self._sum += words
        self._summed.add(name)

    @property
    def survivors(self) -> tuple[str, ...]:
        """Who is in the sum."""
        if self._close(2, len(self._summed)):
            self._roll = self._context.roll(self._shares, self._summed, self.told)
        return tuple(sorted(self._summed))

    # -------------------------------------------------------------------------------- 3: signatures

    def take_signature(self, name: str, signature: bytes) -> None:
        self._expect(3, name, self._summed, self._signatures)
        statement = self._context.survivors(name, self._roll)
        self._keys[name].verify(signature, statement, f"the list of clients that {name} signed")
        self._signatures[name] = signature

    @property
    def signatures(self) -> dict[str, bytes]:
        self._close(3, len(self._signatures))
        return dict(self._signatures)

    # ----------------------------------------------------------------------------------- 4: opening

    def take_revealed(self, name: str, content: bytes) -> None:
        self._expect(4, name, self._signatures, self._revealed)
        *shares, signature = unpack_fields(content, len(self._shares) + 1)
        statement = self._context.revealed(name, self._roll, shares)
        self._keys[name].verify(signature, statement, f"the message with opened shares of {name}")
        self._revealed[name] = shares

    def total(self) -> Words:
        """The sum without its masks."""
        self._close(4, len(self._revealed))
        assert self._sum is not None  # nobody gets here without having sent values
        if not self._opened:
            apply_masks([mask.opposite for mask in self._left_in_sum()], self._sum)
            self._opened = True
        return self._sum

    def _left_in_sum(self) -> list[Mask]:
        """Each summed client's own mask, and the masks that it shares with those whose values did
        not come.
        """
        secrets = self._joined()
        digest = self._context.digest
        masks = [self_mask(secrets[name], digest, name) for name in self.survivors]
        for gone in sorted(set(self._shares) - self._summed):
            private = X25519PrivateKey.from_private_bytes(secrets[gone])
            for name in self.survivors:
                mask = pair_mask(private, self._keys[name].masking, digest, gone, name)
                masks.append(mask.opposite)  # the summed client's side of it
        return masks

    def _joined(self) -> dict[str, bytes]:
        """The seed of each client in the sum, the masking key of each that is not."""
        points = self._context.points
        helpers = sorted(self._revealed)[: self.session.threshold]
        factors = shamir.lagrange_factors([points[helper] for helper in helpers])
        found = {}
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
            found[name] = secret
        return found

    def _is_secret_of(self, name: str, secret: bytes) -> bool:
        if not secret:
            return False
        if name in self._summed:
            return seed_commitment(self.session, name, secret) == self._keys[name].commitment
        return public_half(secret) == self._keys[name].masking

    # --------------------------------------------------------------------------------------- checks

    def _expect(
        self, stage: int, name: str, senders: Collection[str], taken: Collection[str]
    ) -> None:
        """Refuse a message that comes too early, too late, twice, or from somebody who is not asked
        for it.
        """
        what = SERVER_STAGES[stage]
        if stage != self._stage:
            when = "too late" if stage < self._stage else "too early"
            raise SecureSumRefused(f"{self.session}: the {what} of {name} came {when}")
        if name not in senders:
            raise SecureSumRefused(f"{self.session}: {name} was not asked for {what}")
        if name in taken:
            raise SecureSumRefused(f"{self.session}: {name} sent {what} twice")

    def _close(self, stage: int, found: int) -> bool:
        """Whether the stage was still open; too few clients end the sum."""
        if self._stage < stage:
            raise SecureSumRefused(f"{self.session}: the {SERVER_STAGES[stage]} are not there yet")
        if found < max(self.session.threshold, FEWEST_SUMMED):
            asked = len(self.session.members)
            raise SecureSumFailed(
                f"{self.session} failed: {SERVER_STAGES[stage]} came from {found} of {asked}"
                f" clients, {self.session.threshold} are needed"
            )
        if self._stage > stage:
            return False
        self._stage = stage + 1
        return True

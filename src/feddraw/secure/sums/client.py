"""A client's half of one secure sum. It refuses whatever would let the server open more than the
sum.

Keep the state (`to_bytes`) before an answer leaves the site: a client that forgets that it has
masked, signed or revealed can be asked a second time.
"""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddraw.errors import UserError
from feddraw.secure.sums import one_time_keys, shamir
from feddraw.secure.sums.fixed_point import Words
from feddraw.secure.sums.masks import apply_masks, pair_mask, self_mask
from feddraw.secure.sums.message_fields import SecureSumRefused, pack_fields
from feddraw.secure.sums.one_time_keys import (
    OneTimeEnvelope,
    OneTimePublicKeys,
    OneTimeSecrets,
    agreed_secret,
    read_one_time_keys,
)
from feddraw.secure.sums.session import (
    FEWEST_SUMMED,
    PURPOSE,
    SessionContext,
    SessionId,
    session_threshold,
)
from feddraw.secure.sums.signing_keys import SiteDirectory

CLIENT_STAGES = ("new", "advertised", "shared", "masked", "signed", "revealed")
NO_DIRECTORY = (
    "no directory of the sites' public keys: a server that puts its own keys in their place can"
    " open this site's model"
)


@dataclass(frozen=True)
class Shares:
    """A client's shares for all others, closed, under one signature."""

    closed: Mapping[str, bytes]  # by receiver
    signature: bytes


class SecureSumClient:
    """One client, one secure sum, one attempt: advertise, share, mask, sign, reveal, each once and
    in this order.
    """

    def __init__(
        self,
        session: SessionId,
        name: str,
        signing_key: Ed25519PrivateKey,
        directory: SiteDirectory | None,
        *,
        fewest: int = FEWEST_SUMMED,
        rng: shamir.RandomBytes = secrets.token_bytes,
    ) -> None:
        """`fewest` is how many clients must be asked for a sum that this one takes part in."""
        if directory is None:
            warnings.warn(NO_DIRECTORY, stacklevel=2)
        self.session = session
        self.name = name
        self._key = signing_key
        self._directory = directory
        self._rng = rng
        self._fewest = max(FEWEST_SUMMED, fewest)
        self._stage = CLIENT_STAGES[0]
        self._secrets: OneTimeSecrets | None = None
        # Who was asked, and their keys; at first only my own.
        self._context = SessionContext.of(session, {})
        self._peers: dict[str, OneTimePublicKeys] = {}  # all who sent keys
        self._agreed: dict[str, bytes] = {}  # by peer, what closes our envelopes
        # By client, my shares of its masking key and of its seed.
        self._held: dict[str, tuple[bytes, bytes]] = {}
        self._announced = b""
        self._survivors: tuple[str, ...] = ()
        self._roll = b""  # a hash of who is in the sum, and what was announced

    @property
    def members(self) -> tuple[str, ...]:
        """All who were asked."""
        return tuple(self._context.advertised)

    # -------------------------------------------------------------------------------------- 0: keys

    def advertise(self) -> bytes:
        """Fresh public keys, signed."""
        self._require("new", "advertise")
        self._secrets = OneTimeSecrets(self._rng(32), self._rng(32), self._rng(32))
        content = one_time_keys.sign_one_time_keys(
            self.session, self.name, self._key, self._secrets
        )
        self._context = SessionContext.of(self.session, {self.name: content})
        self._stage = "advertised"
        return content

    # ------------------------------------------------------------------------------------ 1: shares

    def meet(self, advertised: Mapping[str, bytes]) -> None:
        """Check the keys of all others; `advertised` names all who were asked.

        More than two thirds of them must have signed keys for this very sum, and so for what this
        client agreed to.
        """
        self._require("advertised", "share")
        if advertised.get(self.name) != self._context.advertised[self.name]:
            raise SecureSumRefused(
                f"the keys that the server passes on for {self.name} are not those that it sent"
            )
        if len(advertised) < self._fewest:
            raise SecureSumRefused(
                f"{self.session}: {len(advertised)} clients are asked, and {self.name} takes part"
                f" with at least {self._fewest} only"
            )
        senders = sorted(name for name, content in advertised.items() if content)
        self._enough(len(senders), len(advertised), "sent keys")
        self._peers = {
            name: read_one_time_keys(self.session, name, advertised[name], self._directory)
            for name in senders
        }
        self._context = SessionContext.of(self.session, advertised)

    def share(self, advertised: Mapping[str, bytes]) -> Shares:
        """Shares of my masking key and seed for every other client."""
        self.meet(advertised)
        mine = self._split(sorted(self._peers))
        self._held = {self.name: mine.pop(self.name)}
        nonces = self._rng(one_time_keys.NONCE_BYTES * len(mine))
        closed = {}
        for number, (peer, pair) in enumerate(mine.items()):
            start = number * one_time_keys.NONCE_BYTES
            nonce = nonces[start : start + one_time_keys.NONCE_BYTES]
            closed[peer] = self._envelope(peer, self.name, peer).close(b"".join(pair), nonce)
        self._stage = "shared"
        return Shares(closed, self._key.sign(self._context.shares(self.name, closed)))

    def _split(self, names: Sequence[str]) -> dict[str, tuple[bytes, bytes]]:
        """By client, its shares of my masking key and of my seed."""
        mine = self._my_secrets()
        places = [self._context.points[name] for name in names]
        needed = session_threshold(len(self._context.advertised))
        keys = shamir.split_secret(mine.masking, needed, places, self._rng)
        seeds = shamir.split_secret(mine.seed, needed, places, self._rng)
        return dict(zip(names, zip(keys, seeds, strict=True), strict=True))

    def _envelope(self, peer: str, sender: str, receiver: str) -> OneTimeEnvelope:
        if peer not in self._agreed:
            private = self._my_secrets().encryption_key
            self._agreed[peer] = agreed_secret(private, self._peers[peer].encryption, peer)
        return OneTimeEnvelope(self._agreed[peer], self._context.digest, sender, receiver)

    # ------------------------------------------------------------------------------------ 2: values

    def mask(
        self,
        shares_for_me: Mapping[str, bytes],
        words: Words,
        *,
        in_place: bool = False,
        announced: bytes = b"",
    ) -> Words:
        """The words under my own mask and one for each client whose shares I got.

        `announced` is a hash of what the server announced about the values, such as sizes or
        weights: I reveal only with clients that got the same, and masks cancel only among them,
        because a sum may open without my signature. Otherwise a server could make all others'
        values vanish beside mine. Once only: the same masks on other words would show the
        difference. Where anything is refused, no word has left.
        """
        self._require("shared", "mask")
        if words.dtype != np.uint64 or words.ndim != 1:
            raise SecureSumRefused("a secure sum takes one vector of 64-bit words")
        names = sorted(set(shares_for_me) - {self.name})
        self._enough(len(names) + 1, len(self._context.advertised), "sent shares")
        if not set(names) <= set(self._peers):
            raise SecureSumRefused("the server passes on shares of a client that sent no keys")
        mine = self._my_secrets()
        digest = self._context.masks(announced)
        held = {name: self._opened(name, shares_for_me[name]) for name in names}
        masks = [self_mask(mine.seed, digest, self.name)]
        masks += [
            pair_mask(mine.masking_key, self._peers[name].masking, digest, self.name, name)
            for name in names
        ]
        masked = words if in_place else words.copy()
        self._held |= held
        self._secrets = None  # the others can give them back now, and I need them no more
        self._agreed = {}
        self._announced = announced
        self._stage = "masked"
        apply_masks(masks, masked)
        return masked

    def _opened(self, peer: str, closed: bytes) -> tuple[bytes, bytes]:
        """My shares of a peer's secrets, if the peer has made them for this very sum."""
        both = self._envelope(peer, peer, self.name).open(closed)
        if len(both) != 2 * shamir.SHARE_BYTES:
            raise SecureSumRefused(f"the shares of {peer} have a wrong length")
        return both[: shamir.SHARE_BYTES], both[shamir.SHARE_BYTES :]

    def seal(self, masked: Words) -> bytes:
        """My signature under the masked words, so that the server knows that nobody changed them on
        the way.
        """
        if self._stage not in ("masked", "signed", "revealed"):
            raise SecureSumRefused("there is nothing to seal before the values are masked")
        return self._key.sign(self._context.masked(self.name, masked))

    # ------------------------------------------------------------------------- 3: who is in the sum

    def sign(self, survivors: Sequence[str]) -> bytes:
        """My word that the sum is over these clients. I give it for one list only."""
        names = tuple(sorted(survivors))
        if self._stage != "signed" or names != self._survivors:
            self._require("masked", "sign")
        if len(set(names)) != len(names) or not set(names) <= set(self._held):
            raise SecureSumRefused(
                "the server's list of clients in the sum has one twice, or one that sent no shares"
            )
        if self.name not in names:
            raise SecureSumRefused(
                f"the server's list of clients in the sum leaves out {self.name}, which sent its"
                " values"
            )
        self._enough(len(names), len(self._context.advertised), "sent values")
        self._survivors = names
        self._roll = self._context.roll(self._held, names, self._announced)
        self._stage = "signed"
        return self._key.sign(self._context.survivors_statement(self.name, self._roll))

    # ----------------------------------------------------------------------------------- 4: opening

    def reveal(self, survivors: Sequence[str], signatures: Mapping[str, bytes]) -> bytes:
        """For each client one of my two shares: of the seed if it is in the sum, of the masking key
        if it is not.
        """
        self._require("signed", "reveal")
        if tuple(sorted(survivors)) != self._survivors:
            raise SecureSumRefused(
                "the server's list of clients in the sum has changed since this client signed it"
            )
        summed = set(self._survivors)
        for name, signature in signatures.items():
            if name not in summed:
                raise SecureSumRefused(f"{name} has signed a list of clients that it is not in")
            statement = self._context.survivors_statement(name, self._roll)
            what = f"the list of clients that {name} signed"
            self._peers[name].verify(signature, statement, what)
        self._enough(
            len(signatures), len(self._context.advertised), "signed the same list of clients"
        )
        shares = [pair[name in summed] for name, pair in sorted(self._held.items())]
        statement = self._context.revealed(self.name, self._roll, shares)
        self._held = {}
        self._stage = "revealed"
        return pack_fields(*shares, self._key.sign(statement))

    # ---------------------------------------------------------------------------------------- state

    @property
    def stage(self) -> str:
        """Which of `CLIENT_STAGES` it has reached."""
        return self._stage

    def to_bytes(self) -> bytes:
        """All that a later call needs, private keys among it: for this site's own memory (0600)
        only.
        """
        mine = self._secrets
        state = {
            "purpose": PURPOSE,
            "session": [self.session.digest.hex(), self.session.sum, self.session.attempt],
            "name": self.name,
            "fewest": self._fewest,
            "stage": self._stage,
            "secrets": [mine.encryption.hex(), mine.masking.hex(), mine.seed.hex()]
            if mine
            else None,
            "advertised": {
                name: content.hex() for name, content in self._context.advertised.items()
            },
            "held": {name: [share.hex() for share in pair] for name, pair in self._held.items()},
            "announced": self._announced.hex(),
            "survivors": list(self._survivors),
            "roll": self._roll.hex(),
        }
        return json.dumps(state).encode()

    @classmethod
    def from_bytes(
        cls, content: bytes, signing_key: Ed25519PrivateKey, directory: SiteDirectory | None
    ) -> Self:
        """A client as it was; its signing key is not part of the state."""
        try:
            state: dict[str, Any] = json.loads(content)
            if state["purpose"] != PURPOSE or state["stage"] not in CLIENT_STAGES:
                raise ValueError
            digest, sum, attempt = state["session"]
            session = SessionId(bytes.fromhex(digest), sum, attempt)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it was said when the client was made
                client = cls(session, state["name"], signing_key, directory, fewest=state["fewest"])
            client._stage = state["stage"]
            mine = state["secrets"]
            client._secrets = OneTimeSecrets(*map(bytes.fromhex, mine)) if mine else None
            advertised = {name: bytes.fromhex(keys) for name, keys in state["advertised"].items()}
            client._context = SessionContext.of(session, advertised)
            client._peers = {
                name: one_time_keys.known_keys(keys) for name, keys in advertised.items() if keys
            }
            client._held = {
                name: (bytes.fromhex(key), bytes.fromhex(seed))
                for name, (key, seed) in state["held"].items()
            }
            client._announced = bytes.fromhex(state["announced"])
            client._survivors = tuple(state["survivors"])
            client._roll = bytes.fromhex(state["roll"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UserError(
                "the kept state of a secure sum is damaged: this client is left out of the sum"
            ) from None
        return client

    # --------------------------------------------------------------------------------------- checks

    def _require(self, stage: str, what: str) -> None:
        if self._stage != stage:
            raise SecureSumRefused(
                f"{self.session}: {self.name} is asked to {what}, but its state is"
                f" '{self._stage}', not '{stage}'"
            )

    def _enough(self, count: int, members: int, what: str) -> None:
        needed = max(session_threshold(members), FEWEST_SUMMED)
        if count < needed:
            raise SecureSumRefused(
                f"{self.session}: only {count} of {members} clients {what}, {needed} are needed"
            )

    def _my_secrets(self) -> OneTimeSecrets:
        assert self._secrets is not None  # until the values are masked
        return self._secrets

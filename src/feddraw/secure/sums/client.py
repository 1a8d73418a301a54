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
from typing import Any, Self

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddraw.errors import UserError
from feddraw.secure.sums import one_time_keys, shamir
from feddraw.secure.sums.fixed_point import Words
from feddraw.secure.sums.masks import apply_masks, pair_mask, self_mask
from feddraw.secure.sums.message_fields import SecureSumRefused, pack_fields, unpack_fields
from feddraw.secure.sums.one_time_keys import (
    OneTimeEnvelope,
    OneTimePublicKeys,
    OneTimeSecrets,
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


class SecureSumClient:
    """One client, one secure sum, one attempt: advertise, share, mask, sign, reveal, each once and
    in this order.
    """

    def __init__(
        self,
        about: SessionId,
        name: str,
        signing_key: Ed25519PrivateKey,
        directory: SiteDirectory | None,
        *,
        least: int = FEWEST_SUMMED,
        rng: shamir.RandomBytes = secrets.token_bytes,
    ) -> None:
        if directory is None:
            warnings.warn(NO_DIRECTORY, stacklevel=2)
        self.about, self.name = about, name
        self._key, self._directory, self._rng = signing_key, directory, rng
        self._least = max(FEWEST_SUMMED, least)  # clients that must be in a sum
        self._stage = CLIENT_STAGES[0]
        self._secrets: OneTimeSecrets | None = None
        self._context = SessionContext.of(
            self.about, {}
        )  # who was asked, and their keys; first only my own
        self._held: dict[
            str, tuple[bytes, bytes]
        ] = {}  # by client, my shares of its masking key and of its seed
        self._agreed = b""
        self._survivors: tuple[str, ...] = ()

    # -------------------------------------------------------------------------------------- 0: keys

    def advertise(self) -> bytes:
        """Fresh public keys, signed."""
        self._require("new", "advertise")
        self._secrets = OneTimeSecrets(self._rng(32), self._rng(32), self._rng(32))
        content = one_time_keys.sign_one_time_keys(self.about, self.name, self._key, self._secrets)
        self._context = SessionContext.of(self.about, {self.name: content})
        self._stage = "advertised"
        return content

    # ------------------------------------------------------------------------------------ 1: shares

    def share(self, advertised: Mapping[str, bytes]) -> dict[str, bytes]:
        """Shares of my masking key and seed for every other client; `advertised` names all who were
        asked.
        """
        self._require("advertised", "share")
        if advertised.get(self.name) != self._context.advertised[self.name]:
            raise SecureSumRefused(
                f"the keys that the server passes on for {self.name} are not those that it sent"
            )
        sent = sorted(name for name, content in advertised.items() if content)
        self._enough(len(sent), len(advertised), "sent keys")
        peers = {
            name: read_one_time_keys(self.about, name, advertised[name], self._directory)
            for name in sent
        }
        self._context = SessionContext.of(self.about, advertised)
        mine = self._split(sent)
        self._held = {self.name: mine.pop(self.name)}
        self._stage = "shared"
        return {peer: self._closed(peer, peers[peer], pair) for peer, pair in mine.items()}

    def _split(self, names: Sequence[str]) -> dict[str, tuple[bytes, bytes]]:
        """By client, its shares of my masking key and of my seed."""
        own, places = self._own_secrets(), [self._context.points[name] for name in names]
        needed = session_threshold(len(self._context.advertised))
        keys, seeds = (
            shamir.split_secret(secret, needed, places, self._rng)
            for secret in (own.masking, own.seed)
        )
        return dict(zip(names, zip(keys, seeds, strict=True), strict=True))

    def _closed(self, peer: str, key: OneTimePublicKeys, pair: tuple[bytes, bytes]) -> bytes:
        """Shares that only the peer can read."""
        private, digest = self._own_secrets().encryption, self._context.digest
        envelope = OneTimeEnvelope(private, key.encryption, digest, self.name, self.name, peer)
        closed = envelope.close(b"".join(pair), self._rng(one_time_keys.NONCE_BYTES))
        return pack_fields(closed, self._key.sign(self._context.shares(self.name, peer, closed)))

    # ------------------------------------------------------------------------------------ 2: values

    def mask(
        self,
        shares_for_me: Mapping[str, bytes],
        words: Words,
        *,
        in_place: bool = False,
        agreed: bytes = b"",
    ) -> Words:
        """The words under my own mask and one for each client whose shares I got.

        `agreed` is a hash of what the server told about the values, such as sizes or weights: I
        reveal only with clients that were told the same. Otherwise a server could make all others'
        values vanish beside mine. Once only: the same masks on other words would show the
        difference. Where anything is refused, no word has left.
        """
        self._require("shared", "mask")
        if words.dtype != np.uint64 or words.ndim != 1:
            raise SecureSumRefused("a secure sum takes one vector of 64-bit words")
        names = sorted(set(shares_for_me) - {self.name})
        self._enough(len(names) + 1, len(self._context.advertised), "sent shares")
        if not all(self._context.advertised.get(name) for name in names):
            raise SecureSumRefused("the server passes on shares of a client that sent no keys")
        own, digest = self._own_secrets(), self._context.digest
        peers = {name: OneTimePublicKeys.of(self._context.advertised[name]) for name in names}
        held = {name: self._opened(name, key, shares_for_me[name]) for name, key in peers.items()}
        found = [self_mask(own.seed, digest, self.name)]
        found += [
            pair_mask(own.masking, key.masking, digest, self.name, name)
            for name, key in peers.items()
        ]
        masked = words if in_place else words.copy()
        self._held |= held
        self._secrets = (
            None  # the others can give them back now, and this client needs them no more
        )
        self._agreed, self._stage = agreed, "masked"
        apply_masks(found, masked)
        return masked

    def _opened(self, peer: str, key: OneTimePublicKeys, content: bytes) -> tuple[bytes, bytes]:
        """My shares of a peer's secrets, if the peer has made them for this very sum."""
        closed, signature = unpack_fields(content, 2)
        statement = self._context.shares(peer, self.name, closed)
        key.verify(signature, statement, f"the message with shares of {peer}")
        private, digest = self._own_secrets().encryption, self._context.digest
        both = OneTimeEnvelope(private, key.encryption, digest, self.name, peer, self.name).open(
            closed
        )
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
        self._survivors, self._stage = names, "signed"
        return self._key.sign(self._survivors_statement(self.name))

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
        for name, signature in signatures.items():
            if name not in self._survivors:
                raise SecureSumRefused(f"{name} has signed a list of clients that it is not in")
            key = OneTimePublicKeys.of(self._context.advertised[name])
            key.verify(
                signature,
                self._survivors_statement(name),
                f"the list of clients that {name} signed",
            )
        self._enough(
            len(signatures), len(self._context.advertised), "signed the same list of clients"
        )
        shares = [pair[name in self._survivors] for name, pair in sorted(self._held.items())]
        statement = self._context.revealed(self.name, self._survivors, shares)
        self._held, self._stage = {}, "revealed"
        return pack_fields(*shares, self._key.sign(statement))

    # ---------------------------------------------------------------------------------------- state

    def to_bytes(self) -> bytes:
        """All that a later call needs, private keys among it: for this site's own memory (0600)
        only.
        """
        own = self._secrets
        state = {
            "purpose": PURPOSE,
            "about": [self.about.run, self.about.round, self.about.sum, self.about.attempt],
            "name": self.name,
            "least": self._least,
            "stage": self._stage,
            "secrets": [own.encryption.hex(), own.masking.hex(), own.seed.hex()] if own else None,
            "advertised": {
                name: content.hex() for name, content in self._context.advertised.items()
            },
            "held": {name: [share.hex() for share in pair] for name, pair in self._held.items()},
            "agreed": self._agreed.hex(),
            "survivors": list(self._survivors),
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
            about = SessionId(*state["about"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it was said when the client was made
                client = cls(about, state["name"], signing_key, directory, least=state["least"])
            client._stage = state["stage"]
            own = state["secrets"]
            client._secrets = OneTimeSecrets(*map(bytes.fromhex, own)) if own else None
            advertised = {name: bytes.fromhex(one) for name, one in state["advertised"].items()}
            client._context = SessionContext.of(client.about, advertised)
            client._held = {
                n: (bytes.fromhex(key), bytes.fromhex(seed))
                for n, (key, seed) in state["held"].items()
            }
            client._agreed = bytes.fromhex(state["agreed"])
            client._survivors = tuple(state["survivors"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UserError(
                "the kept state of a secure sum is damaged: this client is left out of the sum"
            ) from None
        return client

    # --------------------------------------------------------------------------------------- checks

    def _require(self, stage: str, what: str) -> None:
        if self._stage != stage:
            raise SecureSumRefused(
                f"{self.about}: {self.name} is asked to {what}, but its state is '{self._stage}',"
                f" not '{stage}'"
            )

    def _enough(self, found: int, asked: int, what: str) -> None:
        needed = max(session_threshold(asked), self._least)
        if found < needed:
            raise SecureSumRefused(
                f"{self.about}: only {found} of {asked} clients {what}, {needed} are needed"
            )

    def _own_secrets(self) -> OneTimeSecrets:
        assert self._secrets is not None  # until the values are masked
        return self._secrets

    def _survivors_statement(self, signer: str) -> bytes:
        return self._context.survivors(signer, self._held, self._survivors, self._agreed)

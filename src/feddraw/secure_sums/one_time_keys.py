"""The keys that a client makes for one secure sum, and the keys that are derived from them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from feddraw.secure_sums.message_fields import Refused, pack, unpack, verify
from feddraw.secure_sums.session import About
from feddraw.secure_sums.signing_keys import Directory, raw

NONCE_BYTES = 12


@dataclass(frozen=True)
class Advert:
    """A client's public keys, which it has signed, and the hash of its self mask's seed."""

    signer: bytes
    encryption: bytes
    masking: bytes
    commitment: bytes

    @classmethod
    def of(cls, content: bytes) -> Advert:
        """The keys of a message that was checked before."""
        return cls(*unpack(content, 5)[:4])

    @property
    def signing_key(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.signer)


@dataclass(frozen=True)
class Secrets:
    """What belongs to an advert and stays with the client."""

    encryption: bytes
    masking: bytes
    seed: bytes


def advertise(about: About, name: str, key: Ed25519PrivateKey, secrets: Secrets) -> bytes:
    """The signed message."""
    fields = (
        raw(key.public_key()),
        public_half(secrets.encryption),
        public_half(secrets.masking),
        commitment(about, name, secrets.seed),
    )
    return pack(*fields, key.sign(about.statement("keys", name, *fields)))


def read_advert(about: About, name: str, content: bytes, directory: Directory | None) -> Advert:
    """The keys, if the site of that name has signed them for this sum."""
    *fields, signature = unpack(content, 5)
    if any(len(field) != 32 for field in fields):
        raise Refused(f"the keys of {name} have a wrong length")
    advert = Advert(*fields)
    if directory is not None and name not in directory:
        raise Refused(f"{name} is not in the directory of sites")
    if directory is not None and raw(directory[name]) != advert.signer:
        raise Refused(f"the keys of {name} are not signed with its key in the directory of sites")
    verify(
        advert.signing_key, signature, about.statement("keys", name, *fields), f"the message with the keys of {name}"
    )
    return advert


def public_half(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def commitment(about: About, name: str, seed: bytes) -> bytes:
    """Lets the server check a seed that it was given in shares; 256 random bits cannot be guessed from it."""
    return hashlib.sha256(about.statement("seed", name, seed)).digest()


# ---------------------------------------------------------------------------------------------------- what keys make


def _agreed(private: bytes, public: bytes, whose: str) -> bytes:
    try:
        own = X25519PrivateKey.from_private_bytes(private)
        return own.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a point of small order
        raise Refused(f"the keys of {whose} are no X25519 keys") from None


def _derived(secret: bytes, context: bytes, *labels: str) -> bytes:
    info = pack(*(label.encode() for label in labels))
    return HKDF(algorithm=SHA256(), length=32, salt=context, info=info).derive(secret)


class Envelope:
    """Shares from one client to another, closed with AES-256-GCM under a key for this direction and sum only."""

    def __init__(self, private: bytes, public: bytes, context: bytes, own: str, sender: str, receiver: str) -> None:
        agreed = _agreed(private, public, sender if own == receiver else receiver)
        self._cipher = AESGCM(_derived(agreed, context, "shares", sender, receiver))
        self._about, self._sender = pack(context, sender.encode(), receiver.encode()), sender

    def close(self, content: bytes, nonce: bytes) -> bytes:
        return nonce + self._cipher.encrypt(nonce, content, self._about)

    def open(self, content: bytes) -> bytes:
        try:
            return self._cipher.decrypt(content[:NONCE_BYTES], content[NONCE_BYTES:], self._about)
        except (InvalidTag, ValueError):
            raise Refused(f"the shares of {self._sender} cannot be opened") from None

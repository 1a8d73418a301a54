"""The keys that a client makes for one secure sum, and the keys that are derived from them."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from functools import cached_property, lru_cache

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from feddraw.secure.sums.message_fields import SecureSumRefused, pack_fields, unpack_fields
from feddraw.secure.sums.session import SessionId
from feddraw.secure.sums.signing_keys import SiteDirectory

NONCE_BYTES = 12
SIGNATURE_BYTES = 64
# In a simulation all sites of one process check the same few signatures, over the same bytes.
CHECKS_REMEMBERED = 1 << 12
_ANY_KEY = X25519PrivateKey.from_private_bytes(bytes(31) + b"\x40")  # no secret: to try others with


@dataclass(frozen=True)
class OneTimePublicKeys:
    """A client's public keys, which it has signed, and the hash of its self mask's seed."""

    signer: bytes
    encryption: bytes
    masking: bytes
    commitment: bytes

    def verify(self, signature: bytes, statement: bytes, what: str) -> None:
        """Refuse what the client has not signed.

        Nothing is remembered of a signature of another length, which could be megabytes.
        """
        fits = len(signature) == SIGNATURE_BYTES
        if not (fits and _is_signature(self.signer, signature, statement)):
            raise SecureSumRefused(f"{what} has a wrong signature")


@lru_cache(maxsize=CHECKS_REMEMBERED)
def _is_signature(signer: bytes, signature: bytes, statement: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(signer).verify(signature, statement)
    except InvalidSignature:
        return False
    return True


@dataclass(frozen=True)
class OneTimeSecrets:
    """The private keys to these and the seed of the self mask: they stay with the client."""

    encryption: bytes
    masking: bytes
    seed: bytes

    @cached_property
    def encryption_key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.encryption)

    @cached_property
    def masking_key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.masking)


def sign_one_time_keys(
    session: SessionId, name: str, key: Ed25519PrivateKey, secrets: OneTimeSecrets
) -> bytes:
    """The message with the public keys, signed for this sum and what was agreed about it."""
    fields = (
        key.public_key().public_bytes_raw(),
        secrets.encryption_key.public_key().public_bytes_raw(),
        secrets.masking_key.public_key().public_bytes_raw(),
        seed_commitment(session, name, secrets.seed),
    )
    return pack_fields(*fields, key.sign(session.statement("keys", name, *fields)))


def read_one_time_keys(
    session: SessionId, name: str, given: bytes, directory: SiteDirectory | None
) -> OneTimePublicKeys:
    """The keys, if the site of that name has signed them for this sum."""
    keys = _signed_keys(session, name, given)
    if directory is not None and name not in directory:
        raise SecureSumRefused(f"{name} is not in the directory of sites")
    if directory is not None and directory[name].public_bytes_raw() != keys.signer:
        raise SecureSumRefused(
            f"the keys of {name} are not signed with its key in the directory of sites"
        )
    return keys


@lru_cache(maxsize=CHECKS_REMEMBERED)
def _signed_keys(session: SessionId, name: str, given: bytes) -> OneTimePublicKeys:
    *fields, signature = unpack_fields(given, 5)
    if any(len(field) != 32 for field in fields):
        raise SecureSumRefused(f"the keys of {name} have a wrong length")
    keys = OneTimePublicKeys(*fields)
    statement = session.statement("keys", name, *fields)
    keys.verify(signature, statement, f"the message with the keys of {name}")
    for public in (keys.encryption, keys.masking):
        agreed_secret(_ANY_KEY, public, name)  # else all others would find out, and give up
    return keys


def known_keys(given: bytes) -> OneTimePublicKeys:
    """The keys of a message that was checked before."""
    return OneTimePublicKeys(*unpack_fields(given, 5)[:4])


def public_half(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def seed_commitment(session: SessionId, name: str, seed: bytes) -> bytes:
    """Lets the server check a seed that it was given in shares; 256 random bits cannot be guessed
    from it.
    """
    return hashlib.sha256(session.statement("seed", name, seed)).digest()


def agreed_secret(private: X25519PrivateKey, public: bytes, whose: str) -> bytes:
    """What two clients know and nobody else does."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a point of small order
        raise SecureSumRefused(f"the keys of {whose} are no X25519 keys") from None


def derived_key(secret: bytes, context: bytes, *labels: str) -> bytes:
    """32 bytes by HKDF with SHA-256 (RFC 5869); the context is its salt, the labels its info."""
    info = pack_fields(*(label.encode() for label in labels))
    extracted = hmac.digest(context, secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


class OneTimeEnvelope:
    """Shares from one client to another, closed with AES-256-GCM under a key for this direction and
    sum only.

    Only the two know the key, and both have signed the one-time keys that it comes from: what opens
    was closed by the sender.
    """

    def __init__(self, secret: bytes, context: bytes, sender: str, receiver: str) -> None:
        self._cipher = AESGCM(derived_key(secret, context, "shares", sender, receiver))
        self._context = context
        self._sender = sender

    def close(self, content: bytes, nonce: bytes) -> bytes:
        return nonce + self._cipher.encrypt(nonce, content, self._context)

    def open(self, content: bytes) -> bytes:
        try:
            return self._cipher.decrypt(content[:NONCE_BYTES], content[NONCE_BYTES:], self._context)
        except (InvalidTag, ValueError):
            raise SecureSumRefused(f"the shares of {self._sender} cannot be opened") from None

"""The keys that a client makes for one secure sum, and the keys that are derived from them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from feddraw.secure.sums.message_fields import SecureSumRefused, pack_fields, unpack_fields
from feddraw.secure.sums.session import SessionId
from feddraw.secure.sums.signing_keys import SiteDirectory

NONCE_BYTES = 12


@dataclass(frozen=True)
class OneTimePublicKeys:
    """A client's public keys, which it has signed, and the hash of its self mask's seed."""

    signer: bytes
    encryption: bytes
    masking: bytes
    commitment: bytes

    @classmethod
    def of(cls, content: bytes) -> OneTimePublicKeys:
        """The keys of a message that was checked before."""
        return cls(*unpack_fields(content, 5)[:4])

    def verify(self, signature: bytes, statement: bytes, what: str) -> None:
        """Refuse what the client has not signed."""
        try:
            Ed25519PublicKey.from_public_bytes(self.signer).verify(signature, statement)
        except InvalidSignature:
            raise SecureSumRefused(f"{what} has a wrong signature") from None


@dataclass(frozen=True)
class OneTimeSecrets:
    """The private keys to these and the seed of the self mask: they stay with the client."""

    encryption: bytes
    masking: bytes
    seed: bytes


def sign_one_time_keys(
    about: SessionId, name: str, key: Ed25519PrivateKey, secrets: OneTimeSecrets
) -> bytes:
    """The message with the public keys, signed for this sum."""
    signer, commitment = (
        key.public_key().public_bytes_raw(),
        seed_commitment(about, name, secrets.seed),
    )
    fields = (signer, public_half(secrets.encryption), public_half(secrets.masking), commitment)
    return pack_fields(*fields, key.sign(about.statement("keys", name, *fields)))


def read_one_time_keys(
    about: SessionId, name: str, given: bytes, directory: SiteDirectory | None
) -> OneTimePublicKeys:
    """The keys, if the site of that name has signed them for this sum."""
    *fields, signature = unpack_fields(given, 5)
    if any(len(field) != 32 for field in fields):
        raise SecureSumRefused(f"the keys of {name} have a wrong length")
    keys = OneTimePublicKeys(*fields)
    if directory is not None and name not in directory:
        raise SecureSumRefused(f"{name} is not in the directory of sites")
    if directory is not None and directory[name].public_bytes_raw() != keys.signer:
        raise SecureSumRefused(
            f"the keys of {name} are not signed with its key in the directory of sites"
        )
    keys.verify(
        signature, about.statement("keys", name, *fields), f"the message with the keys of {name}"
    )
    return keys


def public_half(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def seed_commitment(about: SessionId, name: str, seed: bytes) -> bytes:
    """Lets the server check a seed that it was given in shares; 256 random bits cannot be guessed
    from it.
    """
    return hashlib.sha256(about.statement("seed", name, seed)).digest()


def agreed_secret(private: bytes, public: bytes, whose: str) -> bytes:
    try:
        own = X25519PrivateKey.from_private_bytes(private)
        return own.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a point of small order
        raise SecureSumRefused(f"the keys of {whose} are no X25519 keys") from None


def derived_key(secret: bytes, context: bytes, *labels: str) -> bytes:
    info = pack_fields(*(label.encode() for label in labels))
    return HKDF(algorithm=SHA256(), length=32, salt=context, info=info).derive(secret)


class OneTimeEnvelope:
    """Shares from one client to another, closed with AES-256-GCM under a key for this direction and
    sum only.
    """

    def __init__(
        self, private: bytes, public: bytes, context: bytes, own: str, sender: str, receiver: str
    ) -> None:
        agreed = agreed_secret(private, public, sender if own == receiver else receiver)
        self._cipher = AESGCM(derived_key(agreed, context, "shares", sender, receiver))
        self._about, self._sender = pack_fields(context, sender.encode(), receiver.encode()), sender

    def close(self, content: bytes, nonce: bytes) -> bytes:
        return nonce + self._cipher.encrypt(nonce, content, self._about)

    def open(self, content: bytes) -> bytes:
        try:
            return self._cipher.decrypt(content[:NONCE_BYTES], content[NONCE_BYTES:], self._about)
        except (InvalidTag, ValueError):
            raise SecureSumRefused(f"the shares of {self._sender} cannot be opened") from None

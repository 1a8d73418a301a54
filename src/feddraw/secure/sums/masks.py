"""Masks: streams of 64-bit words from AES-256 in counter mode, added to a vector or taken from it
again.

A key makes one mask and is used for nothing else, so the counter starts at 0. A block of the vector
stays in the processor's cache while all masks are added to it, and the stream of each block goes
into one buffer that is used again. AES-CTR was measured at 1.6 times the speed of ChaCha20
(`python -m benchmarks --only secure`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from feddraw.secure.sums.fixed_point import Words
from feddraw.secure.sums.one_time_keys import agreed_secret, derived_key
from feddraw.system.threads import in_threads

BLOCK = 1 << 15  # words: a block and its stream together are half a megabyte
STRETCH = 1 << 21  # words that one thread masks at a time
_WORDS_PER_CIPHER_BLOCK = 2  # AES makes 16 bytes at a time
_SLACK = 15  # bytes that update_into wants beside its output


@dataclass(frozen=True)
class Mask:
    """A stream and whether it is added or taken away."""

    key: bytes  # 32 bytes
    plus: bool

    @property
    def opposite(self) -> Mask:
        return Mask(self.key, not self.plus)


def apply_masks(masks: Sequence[Mask], words: Words) -> None:
    """Add all masks to the words, modulo 2^64, in place."""
    starts = range(0, len(words), STRETCH)
    in_threads(lambda start: _apply_from(masks, words[start : start + STRETCH], start), starts)


def _apply_from(masks: Sequence[Mask], words: Words, start: int) -> None:
    """The same for words that begin at some place of the whole vector."""
    block = min(BLOCK, len(words))
    zeros, stream = memoryview(bytes(8 * block)), bytearray(8 * block + _SLACK)
    drawn = np.frombuffer(stream, "<u8", block)
    counter = (start // _WORDS_PER_CIPHER_BLOCK).to_bytes(16, "big")
    running = []
    for mask in masks:
        cipher = Cipher(algorithms.AES(mask.key), modes.CTR(counter)).encryptor()
        running.append((cipher, np.add if mask.plus else np.subtract))
    for first in range(0, len(words), BLOCK):
        part = words[first : first + BLOCK]
        nothing, mine = zeros[: 8 * len(part)], drawn[: len(part)]
        for cipher, combine in running:
            cipher.update_into(nothing, stream)
            combine(part, mine, out=part)


def pair_mask(
    private: X25519PrivateKey, public: bytes, context: bytes, name: str, peer: str
) -> Mask:
    """The mask that two clients share: the first by name adds it, the other takes it away."""
    first, second = sorted((name, peer))
    secret = agreed_secret(private, public, peer)
    return Mask(derived_key(secret, context, "pair mask", first, second), plus=name == first)


def self_mask(seed: bytes, context: bytes, name: str) -> Mask:
    return Mask(derived_key(seed, context, "self mask", name), plus=True)

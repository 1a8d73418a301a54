"""Shamir's shares of a 32-byte secret: any `threshold` of them give it back, and fewer say nothing
about it.

A secret is the value at 0 of a random polynomial of degree threshold - 1 over the integers modulo
`PRIME`, the smallest prime above 2^256; the share of point x is its value at x. The coefficients
come from the operating system's generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from secrets import token_bytes

PRIME = 2**256 + 297
SHARE_BYTES, SECRET_BYTES = 33, 32
RandomBytes = Callable[[int], bytes]


def split_secret(
    secret: bytes, threshold: int, points: Sequence[int], rng: RandomBytes = token_bytes
) -> list[bytes]:
    """A share for each point; points are different and not 0."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= len(points):
        raise ValueError(
            "a secret has 32 bytes, and there are at least as many points as the threshold"
        )
    if len({point % PRIME for point in points} - {0}) != len(points):
        raise ValueError("points are different and not 0")
    coefficients = [
        int.from_bytes(secret, "little"),
        *(_random_coefficient(rng) for _ in range(threshold - 1)),
    ]
    return [_polynomial_at(coefficients, point).to_bytes(SHARE_BYTES, "little") for point in points]


def _random_coefficient(rng: RandomBytes) -> int:
    """Uniform modulo the prime: 64 bytes leave a bias of less than 2^-255."""
    return int.from_bytes(rng(64), "little") % PRIME


def _polynomial_at(coefficients: Sequence[int], point: int) -> int:
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * point + coefficient) % PRIME
    return total


def lagrange_factors(points: Sequence[int]) -> list[int]:
    """Lagrange's factors at 0: the same for all secrets whose shares come from the same points."""
    factors = []
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        factors.append(above * pow(below, -1, PRIME) % PRIME)
    return factors


def join_shares(shares: Mapping[int, bytes], at_zero: Sequence[int] | None = None) -> bytes:
    """The secret from shares by point; ValueError where they cannot be shares of one secret."""
    numbers = [int.from_bytes(share, "little") for share in shares.values()]
    if any(len(share) != SHARE_BYTES for share in shares.values()) or any(
        number >= PRIME for number in numbers
    ):
        raise ValueError("not a share")
    terms = zip(numbers, at_zero or lagrange_factors(list(shares)), strict=True)
    secret = sum(number * factor for number, factor in terms) % PRIME
    if secret >= 2**256:
        raise ValueError("not shares of one secret")
    return secret.to_bytes(SECRET_BYTES, "little")

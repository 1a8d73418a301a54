"""Secure sums: right, or refused in one line.

What an attacker can do is in `test_secure_attacks.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from feddraw.errors import UserError
from feddraw.secure.sums import shamir
from feddraw.secure.sums.client import SecureSumClient
from feddraw.secure.sums.fixed_point import fixed_point_limit, from_fixed_point, to_fixed_point
from feddraw.secure.sums.message_fields import SecureSumRefused, pack_fields
from feddraw.secure.sums.one_time_keys import derived_key
from feddraw.secure.sums.server import SecureSumServer
from feddraw.secure.sums.session import SecureSumFailed, Session, session_threshold

NAMES = tuple(f"site {number}" for number in range(6))
KEYS = {name: Ed25519PrivateKey.generate() for name in NAMES}
DIRECTORY = {name: key.public_key() for name, key in KEYS.items()}
RANDOM = np.random.default_rng(22)
WORDS = {name: RANDOM.integers(0, 2**64, 50, np.uint64) for name in NAMES}


DIGEST = bytes(32)  # of what the clients agreed on


def masked_sum(drops: Mapping[str, int]) -> NDArray[np.uint64]:
    """Of all clients through all stages, where some fall silent."""
    session = Session(DIGEST, "moves", 0, NAMES)
    server = SecureSumServer(session, DIRECTORY)
    clients = {name: SecureSumClient(session, name, KEYS[name], DIRECTORY) for name in NAMES}

    def there(stage: int, names: Iterable[str]) -> list[str]:
        return [name for name in names if drops.get(name, 5) > stage]

    for name in there(0, NAMES):
        server.take_advertised(name, clients[name].advertise())
    advertised = server.close_keys()
    for name in there(1, [name for name, content in advertised.items() if content]):
        server.take_shares(name, clients[name].share(advertised))
    for name in there(2, server.close_shares()):
        server.take_masked(name, clients[name].mask(server.shares_for(name), WORDS[name]))
    survivors = server.close_values()
    for name in there(3, survivors):
        server.take_signature(name, clients[name].sign(survivors))
    signatures = server.close_signatures()
    for name in there(4, signatures):
        server.take_revealed(name, clients[name].reveal(survivors, signatures))
    return server.open_total()


def plain_sum(drops: Mapping[str, int]) -> NDArray[np.uint64]:
    """Values count if they were sent: whoever falls silent after stage 2 is in the sum."""
    total = np.zeros(50, np.uint64)
    for name in NAMES:
        if drops.get(name, 5) > 2:
            total += WORDS[name]
    return total


@pytest.mark.parametrize("stage", range(5))
@pytest.mark.parametrize("name", NAMES)
def test_one_of_six_may_fall_silent_at_any_stage(name: str, stage: int) -> None:
    assert np.array_equal(masked_sum({name: stage}), plain_sum({name: stage}))


def test_two_of_six_that_fall_silent_end_the_sum() -> None:
    with pytest.raises(SecureSumFailed, match="values came from 4 of 6 clients, 5 are needed"):
        masked_sum({NAMES[0]: 2, NAMES[5]: 2})


@pytest.mark.parametrize(
    ("asked", "needed"), [(3, 3), (4, 3), (5, 4), (6, 5), (7, 5), (10, 7), (100, 67)]
)
def test_more_than_two_thirds_must_stay(asked: int, needed: int) -> None:
    assert session_threshold(asked) == needed


def test_fewer_than_three_clients_are_refused() -> None:
    with pytest.raises(UserError, match="at least 3 clients, not 2"):
        Session(DIGEST, "moves", 0, NAMES[:2])


@pytest.mark.parametrize("clients", [1, 3, 10, 1000, 2**20])
def test_the_largest_values_of_all_clients_do_not_overflow(clients: int) -> None:
    largest = fixed_point_limit(clients)
    words = to_fixed_point(np.array([largest, -largest]), clients)
    up, down = (int(word) for word in words.view(np.int64))
    assert up == -down
    assert clients * up <= 2**63 - 1
    with pytest.raises(UserError, match="too large for a secure sum"):
        to_fixed_point(np.array([np.nextafter(largest, np.inf)]) * 1.000001, clients)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(UserError, match="finite numbers only"):
        to_fixed_point(np.array([1.0, bad, 2.0]), 3)


def test_rounding_is_to_the_nearest_and_bounded() -> None:
    values = RANDOM.normal(size=200_000) * 10.0 ** RANDOM.integers(-9, 3, 200_000)
    found = from_fixed_point(to_fixed_point(values, 10))
    assert np.abs(found - values).max() <= 2.0**-41


def test_any_threshold_shares_give_the_secret_and_one_less_gives_another() -> None:
    secret = bytes(range(32))
    shares = dict(zip(range(1, 8), shamir.split_secret(secret, 5, range(1, 8)), strict=True))
    assert shamir.join_shares({point: shares[point] for point in (7, 2, 3, 5, 1)}) == secret
    with contextlib.suppress(ValueError):
        assert shamir.join_shares({point: shares[point] for point in (7, 2, 3, 5)}) != secret


def test_keys_are_derived_as_hkdf_derives_them() -> None:
    known = HKDF(SHA256(), 32, b"context", pack_fields(b"pair mask", b"A", b"B")).derive(b"secret")
    assert derived_key(b"secret", b"context", "pair mask", "A", "B") == known


def test_clients_that_were_told_different_things_open_no_sum() -> None:
    """A server that lets the values of all others vanish, by what it tells them, does not learn the
    one left.
    """
    session, names = Session(DIGEST, "moves", 0, NAMES[:3]), NAMES[:3]
    collector = SecureSumServer(session, DIRECTORY)
    members = {name: SecureSumClient(session, name, KEYS[name], DIRECTORY) for name in names}
    for name in names:
        collector.take_advertised(name, members[name].advertise())
    advertised = collector.close_keys()
    for name in names:
        collector.take_shares(name, members[name].share(advertised))
    for name in names:
        told = b"one thing" if name == names[0] else b"another"
        masked = members[name].mask(collector.shares_for(name), WORDS[name], announced=told)
        collector.take_masked(name, masked)
    signatures = {name: members[name].sign(collector.close_values()) for name in names}
    with pytest.raises(SecureSumRefused, match="signed"):
        members[names[0]].reveal(collector.close_values(), signatures)
    with pytest.raises(SecureSumRefused, match="signed"):
        SecureSumClient.from_bytes(members[names[1]].to_bytes(), KEYS[names[1]], DIRECTORY).reveal(
            names, signatures
        )

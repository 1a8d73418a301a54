"""What a curious or lying server or a thief of messages can do to a secure sum, and what drops do
to it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from random import Random

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from feddraw.secure.sums import masks
from feddraw.secure.sums.client import SecureSumClient, Shares
from feddraw.secure.sums.masks import pair_mask, self_mask
from feddraw.secure.sums.message_fields import SecureSumRefused
from feddraw.secure.sums.one_time_keys import known_keys, public_half
from feddraw.secure.sums.server import SERVER_STAGES, SecureSumServer
from feddraw.secure.sums.session import SecureSumFailed, Session
from test_secure import DIRECTORY, KEYS, NAMES, WORDS, masked_sum, plain_sum

STAGES = len(SERVER_STAGES)

LONG = bool(os.environ.get("FEDDRAW_LONG"))
SESSION = Session(bytes([3]) * 32, "moves", 0, NAMES)
Words = NDArray[np.uint64]


# --------------------------------------------------------------------------------- who falls silent


def patterns() -> Iterator[dict[str, int]]:
    """By client, the stage at which it falls silent: all 6^6 in the long version, else one of each
    kind up to three.
    """
    if LONG:
        for stages in itertools.product(range(STAGES + 1), repeat=len(NAMES)):
            yield {name: stage for name, stage in zip(NAMES, stages, strict=True) if stage < STAGES}
        return
    places = Random(6)
    for silent in range(4):
        for stages in itertools.combinations_with_replacement(range(STAGES), silent):
            yield dict(zip(places.sample(NAMES, silent), stages, strict=True))


def test_every_pattern_of_drops_gives_the_right_sum_or_a_clean_stop() -> None:
    opened = 0
    for drops in patterns():
        if len(drops) <= 1:
            assert np.array_equal(masked_sum(drops), plain_sum(drops)), drops
            opened += 1
        else:
            with pytest.raises(SecureSumFailed, match="are needed"):
                masked_sum(drops)
    assert opened == (1 + len(NAMES) * STAGES if LONG else 1 + STAGES)


# ------------------------------------------------------------------------------------- what is seen


def test_masked_words_are_uniform_and_without_memory() -> None:
    """Words that are all alike, under the masks of three clients: ten million that look
    like noise.
    """
    made = Sum(NAMES[:3], np.full(10_000_000, 12345, np.uint64))
    made.go_to_values()
    words = made.masked[NAMES[0]]
    for chi, places in chi_squares(words):
        assert abs(chi - (places - 1)) < 6 * np.sqrt(2 * places)
    mine, theirs = (made.masked[name] / 2.0**64 - 0.5 for name in NAMES[:2])
    for one, other in ((mine, theirs), *((mine[:-lag], mine[lag:]) for lag in (1, 2, masks.BLOCK))):
        assert abs(12 * np.dot(one, other) / len(one)) < 6 / np.sqrt(len(one))  # their correlation
    assert np.array_equal(made.total(), np.full(len(words), 3 * 12345, np.uint64))


def chi_squares(words: Words) -> Iterator[tuple[float, int]]:
    """Of the lowest, the highest and all other 16 bits of each word."""
    for part in range(4):
        counts = np.bincount(words.view("<u2")[part::4], minlength=2**16)
        expected = len(words) / 2**16
        yield float(((counts - expected) ** 2 / expected).sum()), 2**16


def test_the_test_of_uniformity_sees_words_that_are_not_masked() -> None:
    plain = np.arange(1_000_000, dtype=np.uint64) << np.uint64(30)
    assert any(
        abs(chi - (places - 1)) > 6 * np.sqrt(2 * places) for chi, places in chi_squares(plain)
    )


# ----------------------------------------------------------------------------------- earlier rounds


def repeating(seed: int) -> Callable[[int], bytes]:
    """Randomness that is the same in every round: keys that last."""
    return Random(seed).randbytes


def opened_afterwards(fresh: bool) -> bool:
    """Whether a server opens a client's part of round 2 with what it learns when the client drops
    in round 3.
    """
    victim, rest = NAMES[0], NAMES[1:4]

    def made(round: int) -> Sum:
        sources = {name: os.urandom if fresh else repeating(n) for n, name in enumerate(NAMES)}
        return Sum(NAMES[:4], WORDS, round=round, sources=sources)

    before, after = made(2), made(3)
    before.go_to_values()
    before.total()
    after.go_to_values(silent={victim})
    after.total()
    seeds, learnt = before.collector._joined(), after.collector._joined()[victim]
    context = before.collector._context
    keys = {name: known_keys(context.advertised[name]) for name in rest}
    private = X25519PrivateKey.from_private_bytes(learnt)
    found = [self_mask(seeds[victim], context.digest, victim)]
    found += [
        pair_mask(private, key.masking, context.digest, victim, name) for name, key in keys.items()
    ]
    words = before.masked[victim].copy()
    masks.apply_masks([mask.opposite for mask in found], words)
    return np.array_equal(words, WORDS[victim])


def test_a_drop_in_one_round_does_not_open_the_round_before() -> None:
    assert not opened_afterwards(fresh=True)


def test_the_same_attack_would_open_it_if_keys_lasted() -> None:
    assert opened_afterwards(fresh=False)


def test_nothing_of_one_sum_is_used_in_another() -> None:
    one, other = Sum(NAMES[:3], WORDS, round=2), Sum(NAMES[:3], WORDS, round=3)
    for made in (one, other):
        made.go_to_values()
        made.total()
    for name in NAMES[:3]:
        mine, theirs = (
            known_keys(made.collector._context.advertised[name]) for made in (one, other)
        )
        assert mine.signer == theirs.signer
        assert (
            len({mine.encryption, mine.masking, mine.commitment, theirs.encryption, theirs.masking})
            == 5
        )
        assert mine.commitment != theirs.commitment
        assert not np.array_equal(one.masked[name], other.masked[name])


# ---------------------------------------------------------------------------------- one sum by hand


class Sum:
    """One secure sum whose messages can be taken in hand."""

    def __init__(
        self,
        names: tuple[str, ...],
        words: Words | Mapping[str, Words],
        *,
        round: int = 3,
        attempt: int = 0,
        sources: Mapping[str, Callable[[int], bytes]] | None = None,
    ) -> None:
        self.names, self.words = names, words
        session = Session(bytes([round]) * 32, "moves", attempt, names)
        self.collector = SecureSumServer(session, DIRECTORY)
        rng = sources or dict.fromkeys(names, os.urandom)
        self.members = {
            name: SecureSumClient(session, name, KEYS[name], DIRECTORY, rng=rng[name])
            for name in names
        }
        self.masked: dict[str, Words] = {}

    def go_to_shares(self) -> dict[str, Shares]:
        for name, member in self.members.items():
            self.collector.take_advertised(name, member.advertise())
        advertised = self.collector.advertised
        return {name: member.share(advertised) for name, member in self.members.items()}

    def go_to_values(self, silent: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        for name, shares in self.go_to_shares().items():
            self.collector.take_shares(name, shares)
        for name, member in self.members.items():
            words = self.words if isinstance(self.words, np.ndarray) else self.words[name]
            self.masked[name] = member.mask(self.collector.shares_for(name), words)
            if name not in silent:
                self.collector.take_masked(name, self.masked[name].copy())

    def total(self) -> Words:
        for name in self.collector.survivors:
            self.collector.take_signature(name, self.members[name].sign(self.collector.survivors))
        signatures = self.collector.signatures
        for name in signatures:
            self.collector.take_revealed(
                name, self.members[name].reveal(self.collector.survivors, signatures)
            )
        return self.collector.total()


THREE = NAMES[:3]


def broken(content: bytes) -> Iterator[bytes]:
    """A message cut off, with something behind it, or with one bit changed."""
    for length in (0, 1, 3, 4, len(content) // 2, len(content) - 1):
        yield content[:length]
    yield content + b"\0"
    yield content + content
    step = 1 if LONG else max(1, len(content) // 16)
    for place in range(0, len(content), step):
        yield content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


# ------------------------------------------------------------------------------------ at the server


def test_keys_that_are_broken_forged_or_of_another_sum_are_refused_at_the_server() -> None:
    made, other, later = Sum(THREE, WORDS), Sum(THREE, WORDS, round=2), Sum(THREE, WORDS, attempt=1)
    name, stranger = THREE[0], Ed25519PrivateKey.generate()
    good = made.members[name].advertise()
    replayed = [
        other.members[name].advertise(),
        later.members[name].advertise(),
        made.members[THREE[1]].advertise(),
    ]
    forged = SecureSumClient(SESSION, name, stranger, DIRECTORY).advertise()
    for content in (*broken(good), *replayed, forged):
        with pytest.raises(SecureSumRefused):
            made.collector.take_advertised(name, content)
    made.collector.take_advertised(name, good)
    with pytest.raises(SecureSumRefused, match="sent keys twice"):
        made.collector.take_advertised(name, good)
    with pytest.raises(SecureSumRefused, match="was not asked"):
        made.collector.take_advertised("somebody", good)


def test_shares_that_are_broken_or_of_another_sum_are_refused_at_the_server() -> None:
    made, other = Sum(THREE, WORDS), Sum(THREE, WORDS)
    good, theirs = made.go_to_shares(), other.go_to_shares()
    name, peer = THREE[0], THREE[1]
    closed, signature = dict(good[name].closed), good[name].signature
    for content in (
        *broken(closed[peer]),
        theirs[name].closed[peer],
        closed[THREE[2]],
        good[peer].closed[name],
    ):
        with pytest.raises(SecureSumRefused, match="wrong signature"):
            made.collector.take_shares(name, Shares(closed | {peer: content}, signature))
    for other_signature in (*broken(signature), theirs[name].signature, good[peer].signature):
        with pytest.raises(SecureSumRefused, match="wrong signature"):
            made.collector.take_shares(name, Shares(closed, other_signature))
    swapped = {peer: closed[THREE[2]], THREE[2]: closed[peer]}
    with pytest.raises(SecureSumRefused, match="wrong signature"):
        made.collector.take_shares(name, Shares(swapped, signature))
    with pytest.raises(SecureSumRefused, match="other clients than those that sent keys"):
        made.collector.take_shares(name, Shares({peer: closed[peer]}, signature))
    made.collector.take_shares(name, good[name])


def test_stages_come_in_their_order_and_once_at_the_server() -> None:
    made = Sum(THREE, WORDS)
    with pytest.raises(SecureSumRefused, match="came too early"):
        made.collector.take_masked(THREE[0], WORDS[THREE[0]])
    made.go_to_values()
    with pytest.raises(SecureSumRefused, match="sent values twice"):
        made.collector.take_masked(THREE[0], made.masked[THREE[0]])
    assert made.collector.survivors == tuple(sorted(THREE))
    with pytest.raises(SecureSumRefused, match="came too late"):
        made.collector.take_masked(THREE[0], made.masked[THREE[0]])
    made.total()


def test_values_of_another_length_or_with_a_wrong_seal_are_refused_and_change_no_word() -> None:
    made = Sum(THREE, WORDS)
    for name, shares in made.go_to_shares().items():
        made.collector.take_shares(name, shares)
    for name in THREE:
        masked = made.members[name].mask(made.collector.shares_for(name), WORDS[name])
        seal = made.members[name].seal(masked)
        changed = masked.copy()
        changed[7] ^= np.uint64(1)
        for words, signature in (
            (changed, seal),
            (masked, b"\0" * 64),
            (masked, made.members[name].seal(changed)),
        ):
            with pytest.raises(SecureSumRefused, match="wrong signature"):
                made.collector.take_masked(name, words, signature)
        if name != THREE[0]:
            with pytest.raises(SecureSumRefused, match="49 words, the others 50"):
                made.collector.take_masked(name, masked[:-1])
        with pytest.raises(SecureSumRefused, match="vector of 64-bit words"):
            made.collector.take_masked(name, masked.astype(np.float64))
        made.collector.take_masked(name, masked, seal)
    assert np.array_equal(made.total(), WORDS[THREE[0]] + WORDS[THREE[1]] + WORDS[THREE[2]])


def test_signatures_and_opened_shares_that_are_broken_or_replayed_are_refused_at_the_server() -> (
    None
):
    made, other = Sum(THREE, WORDS), Sum(THREE, WORDS, round=2)
    for one in (made, other):
        one.go_to_values()
    survivors = made.collector.survivors
    theirs = {name: other.members[name].sign(other.collector.survivors) for name in THREE}
    for name in THREE:
        good = made.members[name].sign(survivors)
        for signature in (*broken(good), theirs[name]):
            with pytest.raises(SecureSumRefused):
                made.collector.take_signature(name, signature)
        made.collector.take_signature(name, good)
    signatures = made.collector.signatures
    for name in THREE:
        good = made.members[name].reveal(survivors, signatures)
        for content in broken(good):
            with pytest.raises(SecureSumRefused):
                made.collector.take_revealed(name, content)
        made.collector.take_revealed(name, good)
    assert np.array_equal(
        made.collector.total(), WORDS[THREE[0]] + WORDS[THREE[1]] + WORDS[THREE[2]]
    )


# -------------------------------------------------------------------------------------- at a client


def test_a_client_refuses_keys_that_the_server_has_changed_or_put_in_their_place() -> None:
    made = Sum(THREE, WORDS)
    for name, member in made.members.items():
        made.collector.take_advertised(name, member.advertise())
    name, peer = THREE[0], THREE[1]
    good = made.collector.advertised
    middle = SecureSumClient(SESSION, peer, Ed25519PrivateKey.generate(), DIRECTORY).advertise()
    replayed = Sum(THREE, WORDS, round=2).members[peer].advertise()
    own = SecureSumClient(SESSION, name, KEYS[name], DIRECTORY).advertise()
    bad = [{peer: content} for content in (*broken(good[peer]), middle, replayed) if content] + [
        {name: own}
    ]
    for changed in bad:
        with pytest.raises(SecureSumRefused):
            made.members[name].share(good | changed)
    with pytest.raises(SecureSumRefused, match="only 2 of 3 clients sent keys"):
        made.members[name].share(good | {peer: b""})
    assert made.members[name].share(good).closed.keys() == {peer, THREE[2]}


def test_a_client_refuses_shares_that_were_changed_or_are_those_of_another() -> None:
    made, other = Sum(THREE, WORDS), Sum(THREE, WORDS)
    for one in (made, other):
        for name, shares in one.go_to_shares().items():
            one.collector.take_shares(name, shares)
    name, peer, third = THREE
    good, theirs = made.collector.shares_for(name), other.collector.shares_for(name)
    for content in (
        *broken(good[peer]),
        theirs[peer],
        good[third],
        made.collector.shares_for(third)[peer],
    ):
        with pytest.raises(SecureSumRefused):
            made.members[name].mask(good | {peer: content}, WORDS[name])
    with pytest.raises(SecureSumRefused, match="only 2 of 3 clients sent shares"):
        made.members[name].mask({peer: good[peer]}, WORDS[name])
    made.members[name].mask(good, WORDS[name])
    with pytest.raises(SecureSumRefused, match="is asked to mask"):
        made.members[name].mask(good, WORDS[name])


def six_with_values() -> Sum:
    made = Sum(NAMES, WORDS)
    made.go_to_values()
    return made


@pytest.mark.parametrize(
    ("survivors", "why"),
    [
        (NAMES[1:], "leaves out site 0"),
        (NAMES[:4], "only 4 of 6 clients sent values, 5 are needed"),
        ((*NAMES, NAMES[0]), "has one twice"),
        ((*NAMES, "nobody"), "one that sent no shares"),
    ],
)
def test_a_client_signs_no_list_that_could_open_more_than_the_sum(
    survivors: tuple[str, ...], why: str
) -> None:
    with pytest.raises(SecureSumRefused, match=why):
        six_with_values().members[NAMES[0]].sign(survivors)


def test_a_client_signs_one_list_only() -> None:
    member = six_with_values().members[NAMES[0]]
    assert member.sign(NAMES) == member.sign(
        NAMES[::-1]
    )  # asked again for the same list it says the same
    with pytest.raises(SecureSumRefused, match="its state is 'signed'"):
        member.sign(NAMES[:5])


def test_a_server_that_tells_clients_different_lists_opens_nothing() -> None:
    """Some are told that one client dropped, others not: with both kinds of share its values would
    be open.
    """
    made = six_with_values()
    lists = {name: NAMES if number < 3 else NAMES[:5] for number, name in enumerate(NAMES[:5])}
    signatures = {name: made.members[name].sign(told) for name, told in lists.items()}
    for name, told in lists.items():
        with pytest.raises(SecureSumRefused, match="has a wrong signature"):
            made.members[name].reveal(told, signatures)
        same = {other: one for other, one in signatures.items() if lists[other] == told}
        with pytest.raises(
            SecureSumRefused, match="clients signed the same list of clients, 5 are needed"
        ):
            made.members[name].reveal(told, same)
        with pytest.raises(SecureSumRefused, match="has changed since"):
            made.members[name].reveal(NAMES if told != NAMES else NAMES[:5], signatures)


def test_a_client_reveals_once_and_one_kind_of_share_of_each_peer() -> None:
    made = six_with_values()
    signatures = {name: made.members[name].sign(NAMES) for name in NAMES}
    name = NAMES[0]
    for bad in ({**signatures, NAMES[1]: b""}, {**signatures, NAMES[1]: signatures[NAMES[2]]}):
        with pytest.raises(SecureSumRefused, match="has a wrong signature"):
            made.members[name].reveal(NAMES, bad)
    kept = SecureSumClient.from_bytes(made.members[name].to_bytes(), KEYS[name], DIRECTORY)
    kept.reveal(NAMES, signatures)
    with pytest.raises(SecureSumRefused, match="is asked to reveal"):
        kept.reveal(NAMES, signatures)
    assert b"held" in kept.to_bytes()
    assert SecureSumClient.from_bytes(kept.to_bytes(), KEYS[name], DIRECTORY)._held == {}


def test_after_masking_a_client_holds_no_secret_of_its_own_any_more() -> None:
    made = Sum(THREE, WORDS)
    shares = made.go_to_shares()
    name = THREE[0]
    for sender, given in shares.items():
        made.collector.take_shares(sender, given)
    own = made.members[name]._own_secrets()
    made.members[name].mask(made.collector.shares_for(name), WORDS[name])
    kept = made.members[name].to_bytes().decode()
    for secret in (own.encryption, own.masking, own.seed):
        assert secret.hex() not in kept
    assert public_half(own.masking) == known_keys(made.collector.advertised[name]).masking


def test_wrong_shares_of_a_member_end_the_sum_and_give_no_wrong_one() -> None:
    """A site that lies with its shares is no help to anybody: the secrets are checked against their
    public halves.
    """
    made = Sum(THREE, WORDS)
    made.go_to_values()
    liar = made.members[THREE[0]]
    liar._held = {name: (pair[0][::-1], pair[1][::-1]) for name, pair in liar._held.items()}
    with pytest.raises(SecureSumFailed, match="do not fit: wrong ones were sent"):
        made.total()

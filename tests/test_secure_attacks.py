"""What a curious or lying server or a thief of messages can do to a secure sum, and what drops do
to it.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

import tiny
from feddraw.core import Method, Update, why_no_policy, why_not_secure
from feddraw.errors import UserError
from feddraw.experiment.settings import Experiment, make_method
from feddraw.flower import FedDRAW, job_orders, score_histograms, secure_messages, secure_mod
from feddraw.flower.array_records import pack_array
from feddraw.flower.evaluation_record import TakenEvaluations
from feddraw.flower.frozen_layers import ACTION, QUESTION
from feddraw.flower.in_process_grid import InProcessGrid, identify_in_process_grid
from feddraw.flower.method_as_text import method_as_text
from feddraw.flower.secure_messages import FlowerRun, RecordNames, read_offer
from feddraw.flower.secure_server import SecureRounds
from feddraw.flower.secure_site import secure_where_keyed
from feddraw.methods.fedavg import fedavg
from feddraw.methods.feddisco import feddisco
from feddraw.methods.feddraw import feddraw
from feddraw.methods.fednova import fednova
from feddraw.methods.krum import krum
from feddraw.methods.qfedavg import qfedavg
from feddraw.methods.random_effects import random_effects
from feddraw.methods.scaffold import scaffold
from feddraw.secure.rounds.driver import SecureRound, _Attempt
from feddraw.secure.rounds.in_process import InProcess, Secure
from feddraw.secure.rounds.messages import (
    Add,
    Again,
    Answer,
    Joined,
    Keys,
    Masked,
    Meet,
    Reveal,
    Sign,
    Weigh,
)
from feddraw.secure.rounds.site import MemoryOfProcess, Offer, SecureSite
from feddraw.secure.rounds.terms import Announcement, Party, Terms, terms_of_training
from feddraw.secure.rounds.update_part import UpdatePart
from feddraw.secure.rounds.word_layout import WordLayout
from feddraw.secure.sums import masks
from feddraw.secure.sums.client import SecureSumClient, Shares
from feddraw.secure.sums.fixed_point import from_fixed_point
from feddraw.secure.sums.masks import pair_mask, self_mask
from feddraw.secure.sums.message_fields import SecureSumRefused
from feddraw.secure.sums.one_time_keys import known_keys, public_half
from feddraw.secure.sums.server import SecureSumServer, Stage
from feddraw.secure.sums.session import SecureSumFailed, Session
from feddraw.secure.sums.signing_keys import new_signing_key, site_directory_line
from feddraw.server.policy import Policy
from feddraw.server.round import Round, RoundResult
from feddraw.training.own_frozen_layers import frozen_digest
from feddraw.training.settings import Training
from test_secure import DIRECTORY, KEYS, NAMES, WORDS, masked_sum, plain_sum
from tiny import cohort_of

STAGES = len(Stage)

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
    told = context.masks(b"")
    found = [self_mask(seeds[victim], told, victim)]
    found += [pair_mask(private, key.masking, told, victim, name) for name, key in keys.items()]
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
        advertised = self.collector.close_keys()
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
        for name in self.collector.close_values():
            self.collector.take_signature(
                name, self.members[name].sign(self.collector.close_values())
            )
        signatures = self.collector.close_signatures()
        for name in signatures:
            self.collector.take_revealed(
                name, self.members[name].reveal(self.collector.close_values(), signatures)
            )
        return self.collector.open_total()


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
    assert made.collector.close_values() == tuple(sorted(THREE))
    with pytest.raises(SecureSumRefused, match="came too late"):
        made.collector.take_masked(THREE[0], made.masked[THREE[0]])
    made.total()


def test_values_of_another_type_or_with_a_wrong_seal_are_refused_and_change_no_word() -> None:
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
        with pytest.raises(SecureSumRefused, match="vector of 64-bit words"):
            made.collector.take_masked(name, masked.astype(np.float64))
        made.collector.take_masked(name, masked, seal)
    assert np.array_equal(made.total(), WORDS[THREE[0]] + WORDS[THREE[1]] + WORDS[THREE[2]])


def test_values_of_another_length_are_left_out_even_where_they_come_first() -> None:
    made = Sum(NAMES[:4], WORDS)
    for name, shares in made.go_to_shares().items():
        made.collector.take_shares(name, shares)
    for number, name in enumerate(NAMES[:4]):
        masked = made.members[name].mask(made.collector.shares_for(name), WORDS[name])
        made.collector.take_masked(name, masked[1:] if number == 0 else masked)
    assert made.collector.misfits == {NAMES[0]: f"{NAMES[0]} sent 49 words, the others 50"}
    assert np.array_equal(made.total(), WORDS[NAMES[1]] + WORDS[NAMES[2]] + WORDS[NAMES[3]])


def test_signatures_and_opened_shares_that_are_broken_or_replayed_are_refused_at_the_server() -> (
    None
):
    made, other = Sum(THREE, WORDS), Sum(THREE, WORDS, round=2)
    for one in (made, other):
        one.go_to_values()
    survivors = made.collector.close_values()
    theirs = {name: other.members[name].sign(other.collector.close_values()) for name in THREE}
    for name in THREE:
        good = made.members[name].sign(survivors)
        for signature in (*broken(good), theirs[name]):
            with pytest.raises(SecureSumRefused):
                made.collector.take_signature(name, signature)
        made.collector.take_signature(name, good)
    signatures = made.collector.close_signatures()
    for name in THREE:
        good = made.members[name].reveal(survivors, signatures)
        for content in broken(good):
            with pytest.raises(SecureSumRefused):
                made.collector.take_revealed(name, content)
        made.collector.take_revealed(name, good)
    assert np.array_equal(
        made.collector.open_total(), WORDS[THREE[0]] + WORDS[THREE[1]] + WORDS[THREE[2]]
    )


# -------------------------------------------------------------------------------------- at a client


def test_a_client_refuses_keys_that_the_server_has_changed_or_put_in_their_place() -> None:
    made = Sum(THREE, WORDS)
    for name, member in made.members.items():
        made.collector.take_advertised(name, member.advertise())
    name, peer = THREE[0], THREE[1]
    good = made.collector.close_keys()
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
    own = made.members[name]._my_secrets()
    made.members[name].mask(made.collector.shares_for(name), WORDS[name])
    kept = made.members[name].to_bytes().decode()
    for secret in (own.encryption, own.masking, own.seed):
        assert secret.hex() not in kept
    assert public_half(own.masking) == known_keys(made.collector.close_keys()[name]).masking


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


@pytest.mark.parametrize("place", [0, 2, 5])
def test_one_site_that_reveals_wrong_shares_does_not_stop_a_sum_with_one_more_than_is_needed(
    place: int,
) -> None:
    made = six_with_values()
    liar = made.members[NAMES[place]]
    liar._held = {name: (pair[0][::-1], pair[1][::-1]) for name, pair in liar._held.items()}
    assert np.array_equal(made.total(), plain_sum({}))


# ------------------------------------------------------------------- a lying server, at the protocol

ATTACKS: dict[str, str] = {}  # what the server does, and what comes of it: docs/privacy.md shows it
Test = TypeVar("Test", bound=Callable[..., None])


def attack(lie: str, outcome: str) -> Callable[[Test], Test]:
    """A test that is a line of the table in docs/privacy.md."""

    def note(test: Test) -> Test:
        ATTACKS[lie] = outcome
        return test

    return note


SITES = ("North", "East", "South", "West")
SHAPE = (2, 4)
MODEL = (np.arange(8, dtype=np.float32) / 8).reshape(SHAPE)
DEAD = np.zeros(SHAPE, np.float32)


class Federation:
    """Sites with a Flower app behind `secure_mod`, and a server that sends them what it likes."""

    def __init__(self, folder: Path, names: Sequence[str] = SITES, **settings: Any) -> None:
        identify_in_process_grid()
        self.names = names
        self.runs: list[tuple[str, float, int]] = []  # site, the model's first number, its seed
        self.app = ClientApp(mods=[secure_mod])
        self.app.train()(self._train)
        self.app.evaluate()(self._evaluate)
        self.app.query()(self._evaluate)
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for name in names:
            lines.append(site_directory_line(name, new_signing_key(folder / f"{name}.key")))
        (folder / "sites.toml").write_text("\n".join(lines))
        self.contexts = {}
        for number, name in enumerate(names):
            node: dict[str, Any] = {"partition-id": number, "key": str(folder / f"{name}.key")}
            node |= {"sites": str(folder / "sites.toml"), "memory": str(folder / name)} | settings
            self.contexts[name] = Context(1, 1001 + number, node, RecordDict(), {})

    def _train(self, message: Message, context: Context) -> Message:
        """As careless as an app may be: it takes the first tensors that it finds."""
        number = int(context.node_config["partition-id"])
        received = next(iter(message.content.array_records.values()))
        orders = job_orders.read_orders(message.content)
        sent = next(iter(received.values())).numpy()
        site = self.names[number]
        self.runs.append((site, float(sent.ravel()[0]), int(orders.get("client-seed", 0))))
        if sent.ravel()[0] == 99:
            raise ValueError(f"patient 4711 at {site}")
        moved = sent + np.float32(0.1 * (number + 1))
        metrics = MetricRecord({"num-examples": 10 + number, "loss": 0.5 + number, "num-steps": 3})
        arrays = ArrayRecord({"head.weight": Array(moved)})
        reply = RecordDict({"arrays": arrays, "metrics": metrics})
        return Message(reply, reply_to=message)

    def _evaluate(self, message: Message, context: Context) -> Message:
        self.runs.append((self.names[int(context.node_config["partition-id"])], 0.0, 0))
        metrics = MetricRecord({"num-examples": 5, "loss": 0.25, "validation-places": [0]})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    # ------------------------------------------------------------------------------ what it sends

    def send(self, site: str, content: RecordDict, kind: str = "train") -> RecordDict:
        """A message and its answer; UserError where the site refuses."""
        message = Message(content, self.contexts[site].node_id, kind, group_id="1")
        return self.app(message, self.contexts[site]).content

    def offer(self, site: str, **lies: Any) -> Keys:
        kind = lies.pop("kind", "train")
        content = offered(kind=kind, **lies)
        return secure_messages.keys_of_records(self.send(site, content, kind))

    def ask(self, site: str, request: Any, kind: str = "train") -> Any:
        content = self.send(site, secure_messages.request_to_records(request), kind)
        return secure_messages.answer_of_records(type(request), content)

    def meet(self, sites: Sequence[str] = SITES, **lies: Any) -> dict[str, Joined]:
        """The honest way up to the point where all have trained."""
        keys = {site: self.offer(site, **lies) for site in sites}
        request = met(keys, sites)
        return {site: self.ask(site, request) for site in sites}

    def announcement(self, joined: Mapping[str, Joined], **lies: Any) -> Announcement:
        parties = [Party.of(site, one.size, one.labelled) for site, one in joined.items()]
        return Announcement(terms(**lies), tuple(parties))

    def add(self, site: str, joined: Mapping[str, Joined], **lies: Any) -> Masked:
        shares = {
            peer: one.shares["moves"].closed[site] for peer, one in joined.items() if peer != site
        }
        masked: Masked = self.ask(site, Add("moves", self.announcement(joined, **lies), shares))
        return masked


def terms(method: Any = None, policy: Policy | None = None, **changes: Any) -> Terms:
    rules = method_as_text(method or fedavg())
    found = terms_of_training(rules, ("moves",), 1, 3, policy or Policy())
    return replace(found, reading={"size": "num-examples", "classifier": "head"}, **changes)


def offered(
    model: Any = MODEL,
    kind: str = "train",
    agreed: Terms | None = None,
    attempt: int = 0,
    orders: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
    last: bool = False,
) -> RecordDict:
    """The first message of a round; `more` are records beside it, before it or `last`."""
    if kind == "evaluate":
        agreed = agreed or Terms("evaluate", ("counts",), 0, 3, findings=2)
    secure = secure_messages.order_of_offer(agreed or terms(), attempt)
    config = ConfigRecord(dict(settings or {}))
    ours = {"round": 0, "rounds": 3, "seed": 0, "run": "a run"} | dict(orders or {}) | secure
    arrays = model if isinstance(model, ArrayRecord) else ArrayRecord({"head.weight": Array(model)})
    records: dict[str, Any] = {"arrays": arrays, "config": job_orders.add_orders(config, ours)}
    beside = dict(more or {})
    return RecordDict({**beside, **records} if last else {**records, **beside})


def met(keys: Mapping[str, Keys], asked: Sequence[str] = SITES) -> Meet:
    sums = next(iter(keys.values())).keys
    return Meet(
        {
            sum: {site: keys[site].keys[sum] if site in keys else b"" for site in asked}
            for sum in sums
        }
    )


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path / "sites")


def refused(why: str) -> Any:
    return pytest.raises(UserError, match=why)


def test_the_honest_way_through_these_messages_gives_the_sum(federation: Federation) -> None:
    joined = federation.meet()
    masked = {site: federation.add(site, joined) for site in SITES}
    assert {site: one.size for site, one in joined.items()} == {
        s: 10 + n for n, s in enumerate(SITES)
    }
    sign = Sign("moves", SITES)
    signatures = {site: federation.ask(site, sign).signature for site in SITES}
    for site in SITES:
        federation.ask(site, Reveal("moves", SITES, signatures))
    assert [site for site, _, _ in federation.runs] == list(SITES)
    assert all(one.statement is not None and one.statement.steps == 3 for one in masked.values())


# ---- 1: what is hashed is what is used


@attack(
    "sends one site a dead model as a second record, or records in another order",
    "records that are not expected are refused; the app gets the others in one order, as hashed",
)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_second_record_of_tensors_or_settings_is_refused(
    federation: Federation, kind: str, last: bool
) -> None:
    dead = ArrayRecord({"head.weight": Array(DEAD)})
    for name, record in (("model", dead), ("more", ConfigRecord({"lr": 0.0})), ("memory", dead)):
        with refused("does not take the record"):
            federation.offer("South", more={name: record}, last=last, kind=kind)
    with refused("cannot be read"):
        federation.offer("South", more={"broadcast": ConfigRecord({"lr": 0.0})}, kind=kind)
    assert federation.runs == []


def test_records_in_another_order_change_neither_the_digest_nor_what_is_trained_on(
    federation: Federation,
) -> None:
    beside = {"broadcast": ArrayRecord({"control": Array(DEAD)})}
    keys = {site: federation.offer(site, more=beside, last=site == "South") for site in SITES}
    assert len({one.digest for one in keys.values()}) == 1
    federation.contexts["South"].run_config["resume"] = True
    for site in SITES:
        federation.ask(site, met(keys))
    assert {first for _, first, _ in federation.runs} == {float(MODEL.ravel()[0])}


def digest_of(**lies: Any) -> bytes:
    return read_offer(offered(**lies), FlowerRun(1, "train", {}), RecordNames()).digest


@attack(
    "sends one site other bytes, types, shapes, tensor order, settings or terms than the others",
    "that site signs another digest, and is in no sum with the others",
)
def test_whatever_an_app_can_tell_apart_has_another_digest() -> None:
    one, two = Array(MODEL), Array(DEAD)
    as_integers = Array("int32", one.shape, one.stype, one.data)
    lies: list[dict[str, Any]] = [
        {},
        {"model": DEAD},
        {"model": MODEL.reshape(4, 2)},
        {"model": MODEL.view(np.int32)},
        {"model": ArrayRecord({"head.weight": as_integers})},
        {"model": ArrayRecord({"head.weights": one})},
        {"model": ArrayRecord({"a": one, "bc": two})},
        {"model": ArrayRecord({"ab": one, "c": two})},
        {"model": ArrayRecord({"c": two, "ab": one})},
        {"settings": {"lr": 0.0}},
        {"settings": {"lr": 0}},
        {"settings": {"lr": False}},
        {"settings": {"l": "r0"}},
        {"orders": {"round": 1}},
        {"orders": {"run": "another"}},
        {"more": {"broadcast": ArrayRecord({"control": two})}},
        {"more": {"broadcast": ArrayRecord({"contro": two})}},
        {"agreed": terms(policy=Policy(cap=0.5))},
        {"agreed": terms(feddraw())},
        {"agreed": terms(round=2)},
        {"agreed": terms(clear_weights=True)},
    ]
    digests = [digest_of(**lie) for lie in lies]
    assert len(set(digests)) == len(lies)
    assert digest_of(attempt=5) == digests[0]


@attack(
    "sends one site other frozen layers, or the same bytes under another type",
    "refused: all agree on a digest of the layers' names, types, shapes and bytes",
)
def test_frozen_layers_of_another_type_are_refused(federation: Federation) -> None:
    layers = {"first.weight": MODEL}
    order = {"frozen": frozen_digest(layers)}
    record = ArrayRecord({"first.weight": Array(MODEL)})
    federation.offer("North", orders=order, more={"frozen": record})
    for lie in (MODEL.view(np.int32), MODEL.reshape(4, 2), DEAD):
        with refused("frozen layers are not those"):
            federation.offer(
                "South", orders=order, more={"frozen": ArrayRecord({"first.weight": Array(lie)})}
            )
    with refused("frozen layers are not those"):
        federation.offer("South", more={"frozen": record})
    same_digest = {frozen_digest(layers), frozen_digest({"first.weight": MODEL.view(np.int32)})}
    assert len(same_digest) == 2


@attack(
    "asks which frozen layers a site has, with a model or settings beside the question",
    "a SHA-256 at most leaves the site; its app gets the digest that is asked for and nothing else",
)
def test_a_question_about_frozen_layers_gives_a_digest_and_nothing_else(
    federation: Federation,
) -> None:
    seen: list[RecordDict] = []
    answers: Iterator[str | int] = iter(["patient 4711", "ab" * 32, 4711])

    @federation.app.query(ACTION)
    def careless(message: Message, context: Context) -> Message:
        seen.append(message.content)
        reply = RecordDict({"client": ConfigRecord({"frozen": next(answers), "name": "Alice"})})
        reply["metrics"] = MetricRecord({"age": 50})
        return Message(reply, reply_to=message)

    asked = offered(orders={"frozen": "cd" * 32}, more={"frozen": ArrayRecord()})
    asked["config"] = job_orders.add_orders(ConfigRecord({"mine": 1}), {"frozen": "cd" * 32})
    for held in ("", "ab" * 32, "", ""):  # the last: the app fails, as there is no further answer
        content = federation.send("South", asked, QUESTION)
        assert set(content) == {"client"}
        expected = {"name": "South", "number": 2} | ({"frozen": held} if held else {})
        assert dict(content.config_records["client"]) == expected
    for content in seen:
        assert set(content) == {"config"}
        assert set(content.config_records["config"]) == {job_orders.KEY}
        assert job_orders.read_orders(content) == {"frozen": "cd" * 32}
    assert federation.runs == []


# ---- 2: agreement first, and once


@attack(
    "asks a site again and again, at other models, before others have agreed",
    "keys come, and nothing else; its app does not run",
)
def test_offers_alone_give_keys_and_nothing_else(federation: Federation) -> None:
    for number in range(20):
        content = federation.send("South", offered(model=MODEL + number))
        assert set(content) == {"secure", "client"}
        facts = json.loads(str(content.config_records["secure"]["facts"]))
        assert set(facts) == {"digest"}
        assert set(content.config_records["client"]) == {"name", "number"}
    assert federation.runs == []


@attack(
    "splits the view: some sites get one model, some another, and all are shown to each other",
    "no app runs: keys do not verify under another digest, and fewer than t are too few",
)
def test_a_site_runs_nothing_unless_t_others_signed_the_same(federation: Federation) -> None:
    keys = {site: federation.offer(site) for site in SITES[:2]}
    keys |= {site: federation.offer(site, model=DEAD) for site in SITES[2:]}
    with refused("wrong signature"):
        federation.ask("North", met(keys))
    alike = {site: keys[site] for site in SITES[:2]}
    with refused("only 2 of 4 clients sent keys, 3 are needed"):
        federation.ask("North", met(alike))
    with refused("takes part with at least 3 only"):
        federation.ask("North", met(alike, SITES[:2]))
    with refused("not those that it sent"):
        federation.ask("North", met({**keys, "North": keys["East"]}))
    assert federation.runs == []


def test_signatures_of_an_earlier_round_do_not_count(federation: Federation) -> None:
    before = {site: federation.offer(site, orders={"round": 1}) for site in SITES}
    now = federation.offer("North")
    with refused("wrong signature"):
        federation.ask("North", met({**before, "North": now}))
    assert federation.runs == []


@attack(
    "has a site train twice on the same, to sum it with other sites or under other weights",
    "refused: what was run once is never run again, and no second sum follows a signed list",
)
def test_what_was_run_is_not_run_again(federation: Federation) -> None:
    joined = federation.meet()
    assert len(federation.runs) == 4
    request = met({site: federation.offer(site, attempt=1) for site in SITES})
    three = {site: federation.offer(site, attempt=2) for site in SITES[:3]}
    with refused("other members than before"):
        federation.ask("North", met(three, SITES[:3]))
    with refused("wrong signature|not those that it sent"):
        federation.ask("East", request)
    for lie in ({"agreed": terms(feddraw())}, {"agreed": terms(policy=Policy(cap=0.5))}):
        with refused("has run its app on this before"):
            federation.offer("South", attempt=9, **lie)
    with refused("no other attempt"):
        federation.offer("North", attempt=2)
    assert len(federation.runs) == 4
    assert joined.keys() == set(SITES)


def test_after_a_signed_list_nothing_is_masked_again(federation: Federation) -> None:
    joined = federation.meet()
    for site in SITES:
        federation.add(site, joined)
    with refused("is asked to mask"):
        federation.add("North", joined)
    federation.ask("North", Sign("moves", SITES))
    with refused("has run its app on this before"):
        federation.offer("North", attempt=1)
    with refused("has run its app on this before"):
        federation.ask("North", Again(digest_of(), 7))
    with refused("its state is 'signed'"):
        federation.ask("North", Sign("moves", SITES[:3]))
    assert len(federation.runs) == 4


def test_another_setting_is_another_evaluation_of_the_same_images(federation: Federation) -> None:
    """Not prevented: all sites are asked, and once more all but one under a setting of no meaning."""
    for sites, orders in ((SITES, {}), (SITES[:3], {"x": 1})):
        keys = {site: federation.offer(site, kind="evaluate", orders=orders) for site in sites}
        for site in sites:
            federation.ask(site, met(keys, sites), "evaluate")
    assert [site for site, _, _ in federation.runs] == [*SITES, *SITES[:3]]
    assert said_in_the_docs("evaluates the same model once more with one site fewer")


@attack(
    "calls the run by another name, to begin a round again",
    "refused: a site's memory is keyed by its own key and by what it ran",
)
def test_another_run_text_does_not_make_a_second_sum_possible(federation: Federation) -> None:
    federation.meet()
    for run in ("another run", "", "a run "):
        with refused("has run its app on this before"):
            federation.offer("South", orders={"run": run, "weighted": {}}, attempt=1)
    assert len(federation.runs) == 4


@attack(
    "restarts a site's node in the middle of a round",
    "nothing is forgotten: what it ran, masked and signed is on its disk before an answer leaves",
)
def test_a_restarted_site_forgets_nothing(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "sites")
    joined = federation.meet()
    for site in SITES:
        federation.add(site, joined)
    federation.ask("North", Sign("moves", SITES))
    for context in federation.contexts.values():  # as Flower does at a restart
        context.state = RecordDict()
    with refused("is asked to mask"):
        federation.add("East", joined)
    with refused("its state is 'signed'"):
        federation.ask("North", Sign("moves", SITES[:3]))
    with refused("has run its app on this before"):
        federation.offer("North", attempt=1)


@attack(
    "tells sites different sizes, or asks one how it weighs itself under several",
    "a site weighs itself once in an attempt, masks for one announcement, and opens only with those told the same",
)
def test_a_site_weighs_itself_once_and_for_what_it_masks(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "sites")
    policy = Policy(cap_times=1.5)
    joined = federation.meet(agreed=terms(policy=policy))
    told = federation.announcement(joined, policy=policy)
    others = (replace(told.parties[1], size=9999), *told.parties[2:])
    federation.ask("North", Weigh(told))
    changed = replace(told, parties=(told.parties[0], *others))
    with refused("says it once"):
        federation.ask("North", Weigh(changed))
    shares = {
        peer: one.shares["moves"].closed["North"] for peer, one in joined.items() if peer != "North"
    }
    with refused("has changed since this site agreed"):
        federation.ask("North", Add("moves", changed, shares))
    with refused("not its own"):
        federation.ask("East", Weigh(replace(told, parties=(told.parties[0], *others))))
    with refused("clients that were not asked"):
        federation.ask("East", Weigh(replace(told, parties=(*told.parties, Party("Ghost", 5)))))
    with refused("another round"):
        federation.ask("East", Weigh(replace(told, terms=terms())))


@attack(
    "tells one site of tiny others, and these of a huge one, and opens the sum without its signature",
    "noise: masks are made from what a site was told as well, and cancel only where all were told the same",
)
def test_a_site_that_was_told_something_else_than_the_others_is_in_no_sum_that_opens(
    federation: Federation,
) -> None:
    """Four are asked and three signatures open a sum: West's is not needed."""
    victim, others = SITES[3], SITES[:3]
    for lie in (False, True):
        keys = {site: federation.offer(site, orders={"round": int(lie)}) for site in SITES}
        collector = SecureSumServer(Session(keys[victim].digest, "train: moves", 0, SITES))
        for site, one in keys.items():
            collector.take_advertised(site, one.keys["moves"])
        collector.close_keys()
        joined = {site: federation.ask(site, met(keys)) for site in SITES}
        for site, one in joined.items():
            collector.take_shares(site, one.shares["moves"])
        honest = federation.announcement(joined)
        a_huge_one, tiny_others = honest, honest
        if lie:
            parties = [replace(party, size=6e5) for party in honest.parties]
            a_huge_one = replace(honest, parties=(*honest.parties[:3], parties[3]))
            parties = [replace(party, size=0.01) for party in honest.parties]
            tiny_others = replace(honest, parties=(*parties[:3], honest.parties[3]))
        for site in SITES:
            told = tiny_others if site == victim else a_huge_one
            masked = federation.ask(site, Add("moves", told, collector.shares_for(site)))
            collector.take_masked(site, masked.words, masked.seal)
        collector.announced = a_huge_one.digest
        collector.close_values()
        for site in others:
            collector.take_signature(site, federation.ask(site, Sign("moves", SITES)).signature)
        signatures = collector.close_signatures()
        for site in others:
            answer = federation.ask(site, Reveal("moves", SITES, signatures))
            collector.take_revealed(site, answer.shares)
        values = from_fixed_point(collector.open_total())
        loss = values[MODEL.size]  # of all: 0.5 to 3.5
        assert (loss == 8.0) != lie
        move_of_victim = np.full(MODEL.size, 0.4)
        assert not np.allclose(values[: MODEL.size], move_of_victim, rtol=1e-3)


@attack(
    "shows different lists of survivors, or asks for subsets",
    "a site signs one list, and reveals only with t signatures under the same",
)
def test_a_site_signs_one_list_of_announced_clients(federation: Federation) -> None:
    joined = federation.meet()
    for site in SITES:
        federation.add(site, joined)
    with refused("only 2 of 4"):
        federation.ask("North", Sign("moves", SITES[:2]))
    with refused("were not announced"):
        federation.ask("North", Sign("moves", (*SITES, "Ghost")))
    signatures = {"North": federation.ask("North", Sign("moves", SITES)).signature}
    signatures["East"] = federation.ask("East", Sign("moves", SITES[:3])).signature
    with refused("wrong signature"):
        federation.ask("North", Reveal("moves", SITES, signatures))


# ---- 3: nothing else leaves


@attack(
    "asks for a model or an evaluation without secure sums",
    "training is refused; an evaluation gives an empty answer, and no app runs",
)
def test_nothing_is_said_outside_secure_rounds(federation: Federation) -> None:
    arrays = ArrayRecord({"head.weight": Array(MODEL)})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": 0.1})})
    with refused("takes part in secure sums only"):
        federation.send("South", content)
    assert dict(federation.send("South", content, "evaluate")["metrics"]) == {}
    assert dict(federation.send("South", content, "query")["client"]) == {
        "name": "South",
        "number": 2,
    }
    assert federation.runs == []


@attack(
    "names the seed of local training",
    "not used: seeds come from the site's key and what was agreed, different at every site",
)
def test_a_site_draws_its_own_seeds(tmp_path: Path) -> None:
    seeds = []
    for number, lie in enumerate(({}, {"client-seed": 7}, {"client-seed": 8, "seed": 0})):
        federation = Federation(tmp_path / str(number))
        federation.meet(orders=lie)
        seeds.append({site: seed for site, _, seed in federation.runs})
    drawn = [seed for one in seeds for seed in one.values()]
    assert len(set(drawn)) == len(drawn)
    assert not {0, 7, 8} & set(drawn)
    simulated = Federation(tmp_path / "simulated", simulated=True)
    simulated.meet(orders={"client-seed": 7})
    assert {seed for _, _, seed in simulated.runs} == {0}  # none is given: the run's own holds


@attack(
    "asks for a tiny effort, so that a move is the gradient of one batch",
    "refused below the site's own limit, which is its full effort unless it sets another",
)
def test_less_effort_than_the_sites_limit_is_refused(tmp_path: Path) -> None:
    strict, mild = Federation(tmp_path / "a"), Federation(tmp_path / "b", effort=0.5)
    for effort in (0.999, 1e-9, 0, -1, "1", None):
        with refused("less effort than this site's own limit"):
            strict.offer("South", orders={"effort": effort})
    strict.offer("South", orders={"effort": 1.0})
    mild.offer("South", orders={"effort": 0.5})


@pytest.mark.parametrize("effort", [1.5, 1e308, float("inf"), 10**400])
def test_more_steps_than_training_has_are_refused(effort: float, federation: Federation) -> None:
    with refused("more steps than training has"):
        federation.offer("North", orders={"effort": effort})


@pytest.mark.parametrize(
    "setting", [{"key": ""}, {"sites": "sites.toml"}, {"key": "", "sites": ""}]
)
def test_a_node_that_was_meant_for_secure_sums_gives_its_model_to_no_server(
    setting: dict[str, Any], federation: Federation
) -> None:
    """The ready app trains in clear where no key is set; an empty one is a mistake."""
    app = ClientApp(mods=[secure_where_keyed])
    app.train()(federation._train)
    node: dict[str, Any] = {"partition-id": 0} | setting
    plain = RecordDict({"arrays": ArrayRecord({"head.weight": Array(MODEL)})})
    with refused("need a signing key"):
        app(Message(plain, 1001, "train"), Context(1, 1001, node, RecordDict(), {}))
    assert not federation.runs


@attack(
    "provokes errors, to read data in their text",
    "after agreement an app's errors leave as one sentence that is always the same",
)
def test_the_text_of_an_apps_error_stays_at_the_site(federation: Federation) -> None:
    with pytest.raises(UserError) as error:
        federation.meet(model=np.full(SHAPE, 99, np.float32))
    assert str(error.value) == "its app failed, and its own log says why"
    assert len(federation.runs) == 1


def test_a_site_whose_app_was_cut_off_does_not_run_it_again(federation: Federation) -> None:
    lethal = np.full(SHAPE, 99, np.float32)
    keys = {site: federation.offer(site, model=lethal) for site in SITES}
    with refused("its app failed"):
        federation.ask("North", met(keys))
    with refused("has run its app on this before"):
        federation.ask("North", met(keys))
    with refused("has run its app on this before"):
        federation.offer("North", model=lethal, attempt=1)
    assert len(federation.runs) == 1


@attack(
    "names another number than the images as the size, such as a loss",
    "refused: the site names its size itself",
)
def test_a_server_does_not_choose_which_metric_is_said_in_clear(federation: Federation) -> None:
    with refused("weighs by another number"):
        federation.offer(
            "South", agreed=replace(terms(), reading={"size": "loss", "classifier": "head"})
        )


def test_loss_and_length_are_in_no_answer(federation: Federation) -> None:
    keys = {site: federation.offer(site) for site in SITES}
    joined: dict[str, Any] = {}
    said = []
    for site in SITES:
        content = federation.send(site, secure_messages.request_to_records(met(keys)))
        said.append(str(content.config_records["secure"]["facts"]))
        joined[site] = secure_messages.answer_of_records(Meet, content)
    masked = [federation.add(site, joined) for site in SITES]
    said += [str(one.statement) for one in masked]
    assert all("loss" not in text and "length" not in text and "0.5" not in text for text in said)


# ---- 5 to 8: methods, policies, numbers


@attack(
    "names a method that sums gradients or moves twice, or other sums than a method has",
    "refused by every site, with the reason",
)
def test_a_method_that_is_not_secure_is_refused_by_the_site(federation: Federation) -> None:
    for method, why in ((random_effects(), "first sum is of gradients"), (krum(), "cannot run")):
        with refused(why):
            federation.offer("South", agreed=terms(method))
    with refused("other sums than its method has"):
        federation.offer("South", agreed=replace(terms(), sums=("first", "moves")))
    with refused("no such sums"):
        federation.offer("South", agreed=replace(terms(), sums=("moves", "moves")))
    with refused("another kind of round"):
        federation.send("South", offered(), "evaluate")


@attack(
    "sums gradients beside moves (SCAFFOLD), with a batch so large that all but one take one step",
    "refused by every site: where a move is one step along the gradient the two cancel, and the"
    " large site's move remains",
)
def test_gradients_summed_beside_moves_are_refused_because_their_difference_shows_one_site(
    federation: Federation,
) -> None:
    method = scaffold(option="I", space="gradient")
    solver = Training(epochs=1, batch_size=24, lr=0.05, optimizer="sgd", momentum=0.0)
    kept: list[list[Update]] = []

    def keep(updates: list[Update]) -> list[Update]:
        kept.append([tiny.copied(update) for update in updates])
        return updates

    bench = tiny.bench(method, training=solver)
    list(tiny.train(method, engine=tiny.Altered(bench, keep)))
    assert [update.steps for update in kept[0]] == [2, 1, 1, 1]
    moves = [update.model.params - tiny.initial().params for update in kept[0]]
    gradients = [update.extra["control_change"] for update in kept[0]]
    remains = sum(moves) + np.float32(solver.lr) * sum(gradients)
    cosine = remains @ moves[0] / np.linalg.norm(remains) / np.linalg.norm(moves[0])
    assert cosine > 0.98
    with refused("a single client's as their difference"):
        federation.offer("North", agreed=terms(method))


def all_but_last(labelled: bool) -> NDArray[np.bool_]:
    """Of the six findings of `cohort_of`, which a site labels; the last one where that is said."""
    return np.array([True] * 5 + [labelled])


FACTORED = {"qfedavg": qfedavg(), "fednova": fednova()}


@attack(
    "sums sites' factors (q-FedAvg: their loss) for each finding or output, and solves for one site",
    "such a number is in one sum only; under these methods a site that does not label all findings"
    " is left out by name, and weights by output are refused",
)
@pytest.mark.parametrize("name", FACTORED)
def test_a_sites_own_number_is_in_one_sum_only(name: str) -> None:
    """Of the sums over all and over those who label a finding, the difference is the number of the
    one who does not.
    """
    method = FACTORED[name]
    extra = [
        {"progress": np.array([3.0 + n], np.float32), "loss": np.array([0.5 + n], np.float32)}
        for n in range(4)
    ]
    sent = np.ones(6, np.float32)
    cohort = cohort_of(np.arange(24).reshape(4, 6) / 24, [5, 5, 5, 5], sent=sent, extra=extra)
    updates = list(cohort.updates)
    updates[2] = replace(updates[2], labelled=all_but_last(labelled=False))
    collect = Secure(SITES, [5] * 4, [update.labelled for update in updates])
    state = method.init(cohort.sent)
    result = collect(Round(1, 15, cohort.sent, method, state, SITES, range(4)), updates)
    assert set(result.weights) == {"North", "East", "West"}
    assert "label all findings" in result.ledger[2].status
    parties = [Party.of(SITES[update.client], 5, update.labelled) for update in updates]
    told = Announcement(terms(method), tuple(parties))
    for site, update in zip(SITES, updates, strict=True):
        with refused("label all findings"):  # whatever the server does
            UpdatePart(method, told, site, cohort.sent, update)
    by_output = make_method(Experiment(method=f"feddraw_by_class+{name}"))
    assert "each client's factor" in why_not_secure(by_output)
    everyone = replace(told, parties=tuple(Party(site, 5) for site in SITES))
    form = WordLayout.of(method, cohort.sent.layout, everyone.facts)
    assert [form.spans()[word] for word in ("factor", "term")] == [slice(6, 7), slice(7, 8)]


SEVEN = (*SITES, "Inland", "Coast", "Hills")  # five must stay; two may collude with the server


def rare_finding(labelling: Sequence[str], lying_server: bool, monkeypatch: Any) -> RoundResult:
    """A round of seven sites, of which some label the last finding."""
    if lying_server:
        monkeypatch.setattr(Announcement, "labelling_rare_findings", lambda told, asked: {})
        monkeypatch.setattr(_Attempt, "_check_summed", lambda attempt, told, names: None)
    rows = np.arange(42).reshape(7, 6) / 42
    cohort = cohort_of(rows, [5] * 7, sent=np.ones(6, np.float32))
    marks = [all_but_last(labelled=name in labelling) for name in SEVEN]
    updates = [replace(update, labelled=marks[update.client]) for update in cohort.updates]
    collect = Secure(SEVEN, [5] * 7, marks)
    method = fedavg()
    state = method.init(cohort.sent)
    return collect(Round(1, 15, cohort.sent, method, state, SEVEN, range(7)), updates)


@attack(
    "has colluding sites claim a finding that one honest site labels, and takes their rows off",
    "a row is summed over at least t sites that label its finding, as all else is; sites check it",
)
@pytest.mark.parametrize("colluding", [2, 3])
def test_a_row_that_fewer_than_t_sites_label_is_summed_by_no_site(
    colluding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelling = ("North", *SEVEN[-colluding:])
    result = rare_finding(labelling, lying_server=True, monkeypatch=monkeypatch)
    assert not result.weights
    assert all("needs 5 of 7" in entry.status for entry in result.ledger)
    enough = rare_finding(SEVEN[:5], lying_server=False, monkeypatch=monkeypatch)
    assert len(enough.weights) == 7


def test_a_row_of_evaluation_counts_needs_t_sites_as_well(tmp_path: Path) -> None:
    parties = [Party(name, 0.0, (True, name in SEVEN[:3])) for name in SEVEN]
    told = Announcement(Terms("evaluate", ("counts",), 0, 3, findings=2), tuple(parties))
    with refused("finding 1 is labelled by 3 client"):
        told.check_summed(SEVEN, members=7)
    told.check_summed(SEVEN[:3], members=3)  # all who label it, where nobody else was asked


def said_in_the_docs(sentence: str) -> bool:
    """Whether docs/privacy.md names what is not prevented."""
    text = (Path(__file__).parent.parent / "docs" / "privacy.md").read_text()
    return sentence in " ".join(text.split())


DIFFERENCE_OF_FINDINGS = "compares two findings that different sites label"


def test_rows_of_two_findings_that_all_but_one_site_label_show_that_sites_row() -> None:
    """Not prevented: two totals over other sites. Here the others' labels of both are the same, and
    the server has sent the same row for both.
    """
    moves = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)
    moves[:, 5] = moves[:, 4]
    sent = np.ones(6, np.float32)
    cohort = cohort_of(sent + moves, [5] * 4, sent=sent)
    marks = [all_but_last(labelled=name != "South") for name in SITES]
    updates = [replace(update, labelled=marks[update.client]) for update in cohort.updates]
    collect = Secure(SITES, [5] * 4, marks)
    method = fedavg()
    state = method.init(cohort.sent)
    result = collect(Round(1, 15, cohort.sent, method, state, SITES, range(4)), updates)
    mean_of_four, mean_of_three = (result.next_model.params - sent)[4:]
    south = 4 * mean_of_four - 3 * mean_of_three
    assert south == pytest.approx(moves[SITES.index("South"), 4], abs=1e-5)
    assert said_in_the_docs(DIFFERENCE_OF_FINDINGS)


def test_counts_of_two_findings_that_all_but_one_site_label_show_that_sites_counts(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not prevented: the same, of an evaluation, where the model gives both findings one score."""
    counts_of_site: dict[str, Any] = {}

    def evaluate(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        scores = np.random.default_rng(number).random((20, 1)).repeat(2, axis=1)
        labelled = [True, SITES[number] != "South"]
        truth = np.where(labelled, np.zeros((20, 2)), np.nan)
        counts = score_histograms.count_by_score(scores, truth)
        counts_of_site[SITES[number]] = counts[:, 0].sum(axis=0)
        metrics = score_histograms.histograms_to_metrics("validation", counts)
        reply = RecordDict({"metrics": MetricRecord({"num-examples": 20, **metrics})})
        reply["client"] = ConfigRecord({"name": SITES[number], "labelled": labelled})
        return Message(reply, reply_to=message)

    opened: list[Any] = []
    count = SecureRounds.count

    def watched(rounds: SecureRounds, *given: Any) -> TakenEvaluations:
        opened.extend(count(rounds, *given).contents)
        return TakenEvaluations([], [])

    monkeypatch.setattr(SecureRounds, "count", watched)
    federation.app = ClientApp(mods=[secure_mod])
    federation.app.train()(federation._train)
    federation.app.evaluate()(evaluate)
    strategy_of_sites(federation, federation.app, findings=["a", "b"], masked_counts=True)
    first, second = score_histograms.add_up_histograms(opened, "validation", 2).sum(axis=0)
    assert np.array_equal(first - second, counts_of_site["South"])
    assert said_in_the_docs(DIFFERENCE_OF_FINDINGS)


@attack(
    "(a site) claims a finding that too few others label, so that no sum is opened",
    "it is left out by name, and the others go on",
)
def test_a_site_that_claims_a_rare_finding_is_left_out_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = rare_finding(["Hills"], lying_server=False, monkeypatch=monkeypatch)
    assert set(result.weights) == set(SEVEN) - {"Hills"}
    statuses = {entry.client: entry.status for entry in result.ledger}
    assert "which 1 of 7 clients label" in statuses["Hills"]
    assert result.next_model.params[-1] == 1  # as it was sent


@attack(
    "asks for sites' own weights in clear, or names a policy that needs them (FedDRAW, FedDisco)",
    "refused before training by a site that does not allow it; unless all allow it, weights are"
    " summed under masks, and the server sees their sum",
)
def test_a_site_says_a_weight_that_tells_of_its_update_only_where_it_allows_that(
    tmp_path: Path,
) -> None:
    strict, open = Federation(tmp_path / "a"), Federation(tmp_path / "b", clear_weights=True)
    for policy in (Policy(), Policy(cap_times=1.5)):
        clear = terms(feddraw(), policy=policy, clear_weights=True)
        with refused("asks for this site's weight in clear"):
            strict.offer("South", agreed=clear)
        open.offer("South", agreed=clear)
    with refused("cannot limit what is hidden"):
        strict.offer("South", agreed=terms(feddraw(), policy=Policy(cap_times=1.5)))
    for lie in (1, 0, None, "false"):
        with refused("cannot be read|true or false"):
            strict.offer("South", agreed=terms(feddraw(), clear_weights=lie))
    strict.offer("South", agreed=terms(fedavg(), clear_weights=True))  # by size, which all know
    joined = strict.meet(agreed=terms(feddraw()))
    statement = strict.add("South", joined, method=feddraw()).statement
    assert statement is not None
    assert (statement.own_weights, statement.steps) == ((), 3)


def test_settings_can_make_one_site_the_whole_sum_unless_a_policy_is_required(
    tmp_path: Path,
) -> None:
    """Not prevented: q-FedAvg under a large q is the update of the site with the largest loss."""
    method = qfedavg(q=150)
    rng = np.random.default_rng(4)
    sent = rng.normal(size=6).astype(np.float32)
    rows = sent + 0.1 * rng.normal(size=(4, 6)).astype(np.float32)
    losses = [{"loss": np.array([loss], np.float32)} for loss in (0.9, 1.0, 1.05, 0.8)]
    cohort = cohort_of(rows, [5] * 4, sent=sent, extra=losses)
    collect = Secure(SITES, [5] * 4)
    state = method.init(cohort.sent)
    round = Round(1, 15, cohort.sent, method, state, SITES, range(4))
    moved = collect(round, cohort.updates).next_model.params - sent
    move = rows[2] - sent
    assert moved @ move / np.linalg.norm(moved) / np.linalg.norm(move) > 0.9999
    assert said_in_the_docs("q-FedAvg with a large q")
    (tmp_path / "policy.toml").write_text("[policy]\ncap_times = 1.5\n")
    strict = Federation(tmp_path / "sites", policy=str(tmp_path / "policy.toml"))
    with refused("another policy than this site requires"):
        strict.offer("South", agreed=terms(method))
    with refused("a policy cannot limit the weights of this method"):
        strict.offer("South", agreed=terms(method, policy=Policy(cap_times=1.5)))


@attack(
    "leaves out, or changes, a policy that a site requires",
    "refused: the policy is part of what is agreed",
)
def test_a_site_refuses_a_round_without_the_policy_that_it_requires(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("[policy]\ncap_times = 1.5\n")
    federation = Federation(tmp_path / "sites", policy=str(tmp_path / "policy.toml"))
    for policy in (Policy(), Policy(cap_times=2.0), Policy(cap_times=1.5, fixed="North=0.9")):
        with refused("another policy than this site requires"):
            federation.offer("South", agreed=terms(policy=policy))
    federation.offer("South", agreed=terms(policy=Policy(cap_times=1.5)))


HOSTILE_SITES: dict[str, dict[str, Any]] = {
    "a size of 1e-300": {"num-examples": 1e-300},
    "a size of 400 digits": {"num-examples": "digits"},
    "a size of 0": {"num-examples": 0},
    "a negative size": {"num-examples": -5},
    "the name absent 0": {"name": "absent 0"},
}


@attack(
    "(a site) announces an absurd size, or a name of the ledger's own",
    "that site is refused by name, and the others go on",
)
@pytest.mark.parametrize("lie", HOSTILE_SITES.values(), ids=HOSTILE_SITES)
def test_one_site_that_lies_is_refused_by_name_and_the_others_go_on(
    lie: dict[str, Any], tmp_path: Path
) -> None:
    federation = Federation(tmp_path / "sites")
    if "name" in lie:
        for name, context in federation.contexts.items():
            context.node_config |= {"sites": "", "client": lie["name"] if name == "South" else name}

    def answer(message: Message, context: Context) -> Message:
        """South's own code says what it likes."""
        reply = federation.app(message, context)
        record: Any = reply.content.config_records.get("secure", {})
        facts = json.loads(str(record.get("facts", "{}")))
        if context.node_id == 1003 and "size" in facts and "num-examples" in lie:
            size = "9" * 400 if lie["num-examples"] == "digits" else repr(lie["num-examples"])
            record["facts"] = json.dumps(facts).replace(
                f'"size": {facts["size"]}', f'"size": {size}'
            )
        return reply

    strategy, _ = strategy_of_sites(federation, answer, fraction_evaluate=0.0)
    statuses = {entry.client: entry.status for entry in strategy.history[0].ledger}
    (bad,) = [name for name, status in statuses.items() if status != "weighted"]
    assert bad == lie.get("name", "South")
    assert statuses[bad].startswith("refused: ")
    assert sum(strategy.history[0].weights.values()) == pytest.approx(1.0)
    assert len(strategy.history[0].weights) == 3


@attack(
    "(a site) calls itself by another site's name",
    "refused, and the others go on: the name is whose key signs under it, without a directory at"
    " the server the first client's",
)
@pytest.mark.parametrize(
    ("knows_keys", "comes_first"), [(False, False), (True, False), (True, True)]
)
def test_a_site_under_anothers_name_does_not_stop_the_others(
    knows_keys: bool, comes_first: bool, federation: Federation
) -> None:
    """The operator's list calls sites otherwise than they call themselves. West answers as North,
    and before North, too.
    """

    def answer(message: Message, context: Context) -> Message:
        reply = federation.app(message, context)
        if context.node_id == 1004 and "client" in reply.content:
            number = -1 if comes_first else 3
            reply.content["client"] = ConfigRecord({"name": "North", "number": number})
        return reply

    sites = {f"Hospital {place}": 1001 + place for place in range(4)}
    directory = str(federation.contexts["North"].node_config["sites"]) if knows_keys else None
    options: dict[str, Any] = {"sites": sites, "site_keys": directory, "fraction_evaluate": 0.0}
    strategy, _ = strategy_of_sites(federation, answer, **options)
    statuses = {entry.client: entry.status for entry in strategy.history[0].ledger}
    assert statuses.pop("Hospital 3") == (
        "refused: it calls itself North, which is another site's name"
    )
    assert statuses == dict.fromkeys(list(sites)[:3], "weighted")


@attack(
    "(a site) sends megabytes in the place of a signature or of keys",
    "refused by name at once; nothing of it is remembered",
)
def test_a_signature_of_megabytes_is_refused_and_not_remembered() -> None:
    session = Session(b"digest", "moves", 0, NAMES)
    server = SecureSumServer(session, DIRECTORY)
    sites = {name: SecureSumClient(session, name, KEYS[name], DIRECTORY) for name in NAMES}
    with pytest.raises(SecureSumRefused, match="more than 5 fields"):
        server.take_advertised(NAMES[0], bytes(4096))
    for name, site in sites.items():
        server.take_advertised(name, site.advertise())
    advertised = server.close_keys()
    signature = os.urandom(1 << 20)
    held = sys.getrefcount(signature)
    closed = sites[NAMES[0]].share(advertised).closed
    with pytest.raises(SecureSumRefused, match="has a wrong signature"):
        server.take_shares(NAMES[0], Shares(closed, signature))
    assert sys.getrefcount(signature) == held


def strategy_of_sites(
    federation: Federation,
    answer: Callable[[Message, Context], Message],
    rounds: int = 1,
    **options: Any,
) -> tuple[FedDRAW, Any]:
    """Rounds of the ready server over these sites, whose answers pass through a function."""
    grid = InProcessGrid(answer, [])  # type: ignore[arg-type]
    grid.contexts = {context.node_id: context for context in federation.contexts.values()}
    strategy = FedDRAW(min_available_nodes=len(federation.contexts), secure=True, **options)
    return strategy, strategy.start(grid, ArrayRecord({"head.weight": Array(MODEL)}), rounds)


def test_an_answer_that_is_too_large_is_not_read(federation: Federation) -> None:
    """Whatever a site seals itself: 24 MB of words where the model has eight numbers."""

    def answer(message: Message, context: Context) -> Message:
        reply = federation.app(message, context)
        if context.node_id == 1003 and "words" in reply.content:
            words = pack_array(np.zeros(3 * 2**20, np.uint64))
            reply.content["words"] = ArrayRecord({"words": words})
        return reply

    strategy, _ = strategy_of_sites(federation, answer, fraction_evaluate=0.0)
    statuses = {entry.client: entry.status for entry in strategy.history[0].ledger}
    assert "24 MB of tensors" in statuses.pop("South")
    assert set(statuses.values()) == {"weighted"}


@pytest.mark.parametrize("counted", [2**63, 2**64 - 1, 10**15])
def test_counts_that_no_site_can_have_give_no_evaluation_and_stop_nothing(
    counted: int, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    words_of_site = score_histograms.histograms_to_words
    asked: list[int] = []

    def lie(content: RecordDict, findings: int) -> Words:
        words = words_of_site(content, findings)
        return words + np.uint64(counted) if asked[-1] == 1003 else words

    def answer(message: Message, context: Context) -> Message:
        asked.append(context.node_id)
        return federation.app(message, context)

    monkeypatch.setattr(score_histograms, "histograms_to_words", lie)
    options: dict[str, Any] = {"findings": ["a", "b"], "masked_counts": True}
    strategy, result = strategy_of_sites(federation, answer, **options)
    assert len(strategy.history[0].weights) == 4
    assert not result.evaluate_metrics_clientapp


# ---------------------------------------------------------------------------------- the central test


class Watched(InProcess):
    """The transport, with all that reaches the server."""

    seen: ClassVar[list[tuple[str, Answer]]] = []

    def offer(self, offer: Offer, round: SecureRound) -> dict[str, Keys]:
        keys = super().offer(offer, round)
        self.seen.extend(keys.items())
        return keys

    def ask(self, requests: Any) -> Iterator[tuple[str, Answer]]:
        for name, answer in super().ask(requests):
            kept = (
                replace(answer, words=answer.words.copy()) if isinstance(answer, Masked) else answer
            )
            self.seen.append((name, kept))
            yield name, answer


@pytest.mark.parametrize("method", [feddraw(), fedavg(), fednova(), qfedavg(), feddisco()], ids=str)
@pytest.mark.parametrize("policy", [Policy(), Policy(cap_times=1.5)], ids=["plain", "policy"])
def test_exchanging_two_sites_updates_changes_nothing_that_the_server_sees_but_masks(
    method: Method, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """North and East have the same listed values, and exchange updates, losses and all else; under
    FedDRAW without a policy their own weights too, which differ.

    With the same randomness in both worlds, all that the server gets is equal to the bit but
    North's and East's masked words. These differ by their updates, in opposite directions: exactly
    as if the mask that the two share, which nobody else knows, were another one.
    """
    if policy.limits_weights and why_no_policy(method):
        pytest.skip("takes no policy")
    if policy.limits_weights and method == feddraw():
        pytest.skip("the two have other weights, which are said under a policy")
    keys = {name: Ed25519PrivateKey.generate() for name in SITES}
    directory = {name: key.public_key() for name, key in keys.items()}
    rng = np.random.default_rng(1)
    sent = rng.normal(size=6).astype(np.float32)
    rows = sent + 0.1 * rng.normal(size=(4, 6)).astype(np.float32)
    labels = np.tile(np.array([[5, 1], [5, 1], [3, 2], [9, 4]], np.float32), 3)
    worlds = []
    for first, second in ((0, 1), (1, 0)):
        order = [first, second, 2, 3]
        cohort = cohort_of(
            rows[order],
            [20, 20, 30, 40],
            sent=sent,
            steps=[3, 3, 4, 5],
            extra=[
                {
                    "progress": np.array([3.0 + n], np.float32),
                    "loss": np.array([0.5 + n], np.float32),
                    "labels": labels[n],
                }
                for n in order
            ],
        )
        updates = [
            replace(update, metrics={"loss": 0.25 * (n + 1)})
            for update, n in zip(cohort.updates, order, strict=True)
        ]
        collect = Secure(
            SITES, [20, 20, 30, 40], policy=policy, clear_weights=policy.limits_weights
        )
        for name, site in collect._sites.items():
            collect._sites[name] = SecureSite(
                replace(site.settings, key=keys[name], directory=directory), MemoryOfProcess()
            )
        source = Random(7).randbytes
        defaults = SecureSumClient.__init__.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "rng", source)
        monkeypatch.setattr("feddraw.secure.rounds.in_process.InProcess", Watched)
        monkeypatch.setattr(Watched, "seen", [])
        state = method.init(cohort.sent)
        result = collect(Round(1, 15, cohort.sent, method, state, SITES, range(4)), updates)
        assert len(result.weights) == 4, [entry.status for entry in result.ledger]
        worlds.append((Watched.seen, result))
    (here, result), (there, other) = worlds
    assert [name for name, _ in here] == [name for name, _ in there]
    changed = {name: np.zeros(0, np.uint64) for name in SITES}
    for (name, one), (_, two) in zip(here, there, strict=True):
        if isinstance(one, Masked):
            assert isinstance(two, Masked)
            assert one.statement == two.statement
            changed[name] = np.append(changed[name], one.words - two.words)
        elif isinstance(one, Joined):
            assert isinstance(two, Joined)
            assert (one.size, one.shares) == (two.size, two.shares)
        else:
            assert one == two
    assert changed["North"].any()
    assert not (changed["North"] + changed["East"]).any()
    assert not changed["South"].any()
    assert not changed["West"].any()
    assert np.array_equal(result.next_model.params, other.next_model.params)
    assert str(result.ledger) == str(other.ledger)
    assert result.loss == other.loss


def test_the_table_of_attacks_in_the_docs_is_that_of_the_tests() -> None:
    text = (Path(__file__).parent.parent / "docs" / "privacy.md").read_text()
    table = "\n".join(f"| {lie} | {outcome} |" for lie, outcome in ATTACKS.items())
    assert table in text, f"docs/privacy.md should have:\n{table}"

"""Sites that collude with a lying server: they sign whatever they are asked to, as often as they are
asked, and give the server their shares.

Up to c = K - t of the K sites that were asked, no way of telling honest sites different things
opens one site's words, runs an app under two digests, or opens two attempts. From c = 2 t - K on
each of these works, so the bound of docs/privacy.md is the right one to within a site or two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Context, Message
from numpy.typing import NDArray

from feddraw.errors import UserError
from feddraw.flower import job_orders, secure_messages
from feddraw.flower.in_process_grid import FIRST_NODE
from feddraw.secure.rounds.terms import Announcement, Party, Terms
from feddraw.secure.sums import shamir
from feddraw.secure.sums.client import SecureSumClient
from feddraw.secure.sums.masks import apply_masks, pair_mask, self_mask
from feddraw.secure.sums.message_fields import SecureSumRefused, unpack_fields
from feddraw.secure.sums.server import SecureSumServer
from feddraw.secure.sums.session import Session, SessionId, session_threshold
from test_secure_attacks import Federation, strategy_of_sites

SITES = tuple(f"site {number:02d}" for number in range(10))
KEYS = {name: Ed25519PrivateKey.generate() for name in SITES}
DIRECTORY = {name: key.public_key() for name, key in KEYS.items()}
VICTIM = SITES[0]
Words = NDArray[np.uint64]

asked = pytest.mark.parametrize("asked", range(3, len(SITES) + 1))
# Of three sites all would have to collude, and then there is no victim.
asked_of_more = pytest.mark.parametrize("asked", range(4, len(SITES) + 1))


def tolerated(asked: int) -> int:
    """How many colluding sites the promise allows."""
    return asked - session_threshold(asked)


def enough_to_break_it(asked: int) -> int:
    """How many can be in two groups that overlap in no honest site, each of t sites."""
    return 2 * session_threshold(asked) - asked


class MaskedSum:
    """A sum of some sites whose words have arrived, and whose lists are about to be signed."""

    def __init__(self, asked: int) -> None:
        self.names = SITES[:asked]
        session = Session(bytes(32), "train: moves", 0, self.names)
        self.server = SecureSumServer(session, DIRECTORY)
        self.members = {
            name: SecureSumClient(session, name, KEYS[name], DIRECTORY) for name in self.names
        }
        for name, member in self.members.items():
            self.server.take_advertised(name, member.advertise())
        advertised = self.server.close_keys()
        for name, member in self.members.items():
            self.server.take_shares(name, member.share(advertised))
        self.words = {name: np.full(4, 10 + number, np.uint64) for number, name in enumerate(SITES)}
        self.masked: dict[str, Words] = {}
        for name, member in self.members.items():
            self.masked[name] = member.mask(self.server.shares_for(name), self.words[name])

    def revealed(
        self, signing: Sequence[str], survivors: Sequence[str]
    ) -> dict[str, dict[str, bytes]]:
        """By site that reveals, what it reveals of each; empty where it refuses. A colluding site
        is asked in a copy of itself, so that it can sign another list elsewhere.
        """
        copies = {
            name: SecureSumClient.from_bytes(self.members[name].to_bytes(), KEYS[name], DIRECTORY)
            for name in signing
        }
        signatures = {}
        for name, copy in copies.items():
            with suppress(SecureSumRefused):
                signatures[name] = copy.sign(survivors)
        shares = {}
        for name in signatures:
            with suppress(SecureSumRefused):
                opened = copies[name].reveal(survivors, signatures)
                fields = unpack_fields(opened, len(self.names) + 1)
                shares[name] = dict(zip(sorted(self.names), fields, strict=False))
        return shares

    def words_of_victim(self, first: Sequence[str], second: Sequence[str]) -> Words | None:
        """What a server opens that tells `first` that the victim is in the sum, and `second` that
        it dropped; None where one of the secrets does not come.
        """
        others = [name for name in self.names if name != VICTIM]
        context = self.server._context
        secrets = []
        for signing, survivors in ((first, self.names), (second, others)):
            shares = self.revealed(signing, survivors)
            by_point = {context.points[name]: opened[VICTIM] for name, opened in shares.items()}
            if len(by_point) < session_threshold(len(self.names)):
                return None
            secrets.append(shamir.join_shares(by_point))
        seed, key = secrets
        told = context.masks(b"")
        private = X25519PrivateKey.from_private_bytes(key)
        masks = [self_mask(seed, told, VICTIM)]
        for name in others:
            masks.append(pair_mask(private, self.server._keys[name].masking, told, VICTIM, name))
        words = self.masked[VICTIM].copy()
        apply_masks([mask.opposite for mask in masks], words)
        return words


def split_views(asked: int, colluding: int) -> list[tuple[list[str], list[str]]]:
    """All ways to show two groups of honest sites different things, by how many; the colluding
    sites, the last ones, are in both.
    """
    honest = list(SITES[: asked - colluding])
    liars = list(SITES[asked - colluding : asked])
    return [(honest[:n] + liars, honest[n:] + liars) for n in range(1, len(honest) + 1)]


@asked
def test_colluding_sites_that_sign_two_lists_open_no_sites_words(asked: int) -> None:
    made = MaskedSum(asked)
    for split in split_views(asked, tolerated(asked)):
        assert made.words_of_victim(*split) is None


@asked_of_more
def test_more_colluding_sites_than_are_tolerated_open_a_sites_words(asked: int) -> None:
    made = MaskedSum(asked)
    splits = split_views(asked, enough_to_break_it(asked))
    opened = [words for split in splits if (words := made.words_of_victim(*split)) is not None]
    assert opened
    assert all(np.array_equal(words, made.words[VICTIM]) for words in opened)


def runs_its_app(member: SecureSumClient, keys: Mapping[str, bytes]) -> bool:
    try:
        member.meet(keys)
    except SecureSumRefused:
        return False
    return True


def digests_that_run(names: Sequence[str], split: tuple[list[str], list[str]]) -> int:
    """Under how many of two digests honest sites run their app, where each group is offered one and
    colluding sites sign both.
    """
    liars = set(split[0]) & set(split[1])
    ran = 0
    for number, group in enumerate(split):
        session = SessionId(bytes([number]) * 32, "train: moves")
        members = {name: SecureSumClient(session, name, KEYS[name], DIRECTORY) for name in group}
        keys = dict.fromkeys(names, b"") | {n: m.advertise() for n, m in members.items()}
        honest = [member for name, member in members.items() if name not in liars]
        ran += bool(honest) and all(runs_its_app(member, keys) for member in honest)
    return ran


@asked
def test_colluding_sites_that_sign_two_digests_make_no_app_run_under_both(asked: int) -> None:
    """The same count holds for two attempts at one sum: a site signs a list in one of them."""
    names = SITES[:asked]
    for split in split_views(asked, tolerated(asked)):
        assert digests_that_run(names, split) <= 1


@asked_of_more
def test_more_colluding_sites_than_are_tolerated_make_it_run_under_both(asked: int) -> None:
    splits = split_views(asked, enough_to_break_it(asked))
    assert any(digests_that_run(SITES[:asked], split) == 2 for split in splits)


@asked
def test_names_without_keys_do_not_make_a_small_cohort_large(asked: int) -> None:
    """A server that pads the list of those asked needs more of the real ones, not fewer."""
    names = SITES[:asked]
    ghosts = {f"ghost {number}": b"" for number in range(asked)}
    session = SessionId(bytes(32), "train: moves")
    members = {n: SecureSumClient(session, n, KEYS[n], DIRECTORY, fewest=2 * asked) for n in names}
    keys = {name: member.advertise() for name, member in members.items()}
    for padded in (keys, keys | ghosts):
        assert not any(runs_its_app(member, padded) for member in members.values())


def test_a_larger_cohort_never_tolerates_fewer_colluding_sites() -> None:
    """So what holds for a site's `fewest` holds for every cohort that it takes part in."""
    for asked in range(3, 500):
        assert tolerated(asked) <= tolerated(asked + 1)
        assert tolerated(asked) < enough_to_break_it(asked)
        honest_in_a_sum = session_threshold(asked) - tolerated(asked)
        assert honest_in_a_sum >= 2


@asked
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_row_that_is_summed_holds_two_honest_sites_whatever_colluding_ones_claim(
    asked: int, kind: str
) -> None:
    sums = ("moves",) if kind == "train" else ("counts",)
    terms = Terms(kind, sums, 0, 3, findings=2 if kind == "evaluate" else 0)
    names = SITES[:asked]
    colluding = tolerated(asked)
    for honest in range(1, asked - colluding + 1):
        labelling = {*names[:honest], *names[asked - colluding :]}
        parties = [Party(name, 1.0, (True, name in labelling)) for name in names]
        told = Announcement(terms, tuple(parties))
        try:
            told.check_summed(names, members=asked)
        except UserError:
            continue
        assert honest >= 2


# ----------------------------------------------------------------------------- ten sites on the wire


class Server:
    """The ready server over ten sites; it may lie to some of them, and some may fall silent."""

    def __init__(
        self, folder: Path, lied_to: Collection[int] = (), silent: Mapping[int, str] | None = None
    ) -> None:
        self.federation = Federation(folder, names=SITES)
        self._lied_to = lied_to
        self._silent = silent or {}  # by site, the message that it does not answer
        options = {"findings": ["a", "b"], "masked_counts": True}
        self.strategy, _ = strategy_of_sites(self.federation, self._answer, **options)
        self.weighted = set(self.strategy.history[0].weights) if self.strategy.history else set()

    def _answer(self, message: Message, context: Context) -> Message:
        number = context.node_id - FIRST_NODE
        order = secure_messages.secure_order_in(message.content) or {}
        if self._silent.get(number) == order.get("stage", "offer"):
            raise ConnectionError("gone")
        if number in self._lied_to and "terms" in order:
            message.content = job_orders.with_order(message.content, "round", 2)
        return self.federation.app(message, context)

    @property
    def evaluated(self) -> set[str]:
        return {site.client for site in self.strategy.evaluation.sites if site.evaluated}


def sites_at(places: Iterable[int]) -> set[str]:
    return {SITES[place] for place in places}


def test_three_of_ten_that_are_sent_something_else_are_left_out_and_with_four_nobody_trains(
    tmp_path: Path,
) -> None:
    made = Server(tmp_path / "three", lied_to=(0, 4, 9))
    others = sites_at({*range(10)} - {0, 4, 9})
    assert made.weighted == made.evaluated == others
    assert {site for site, _, _ in made.federation.runs} == others
    split = Server(tmp_path / "four", lied_to=(0, 4, 7, 9))
    assert not split.weighted
    assert split.federation.runs == []


@pytest.mark.parametrize("stage", ["offer", "add", "reveal"])
def test_three_of_ten_may_fall_silent_at_any_message_of_training_and_evaluation(
    stage: str, tmp_path: Path
) -> None:
    made = Server(tmp_path / "sites", silent=dict.fromkeys((1, 2, 8), stage))
    summed = range(10) if stage in ("sign", "reveal") else {*range(10)} - {1, 2, 8}
    assert made.weighted == made.evaluated == sites_at(summed)

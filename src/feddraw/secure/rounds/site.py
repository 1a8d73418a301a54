"""A site's side of a secure round: a state machine that answers one message at a time.

It does not know how messages travel, what is trained and how it is weighed: `Work` runs the app,
`Part` makes the words that are masked. It decides what it answers, and in which order
(`driver` has the messages). Its memory is its own: by its signing key and by what was agreed, never
by a name that the server gives.

    offered    it was sent something, and has sent keys that sign the digest of all of it
    met        more than two thirds of the members have signed the same; it has run its app, once
    masked     its words are out, for one announcement; then `signed`, then `revealed`

What was run once is never run again. A second attempt at the same sums needs the same digest, the
same members and a site that has not signed any list yet: otherwise two different sums of the same
updates could be opened, and their difference would be one site's. A site that was not told of the
others' keys has run nothing; it sends fresh ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddraw.errors import UserError
from feddraw.secure.rounds.messages import (
    Add,
    Again,
    Answer,
    Joined,
    Keys,
    Masked,
    Meet,
    Request,
    Reveal,
    Revealed,
    Sign,
    Signed,
    Weigh,
)
from feddraw.secure.rounds.terms import FIRST_SUM, Announcement, Labels, Statement, Terms
from feddraw.secure.sums.client import SecureSumClient
from feddraw.secure.sums.fixed_point import Words
from feddraw.secure.sums.session import FEWEST_SUMMED, SessionId
from feddraw.secure.sums.signing_keys import SiteDirectory
from feddraw.server.policy import Policy

MOST_ATTEMPTS = 3  # at the sums of one digest
RUN_BEFORE = (
    "this site has run its app on this before: a second sum of the same updates would show what"
    " one site sent"
)


@dataclass(frozen=True)
class SiteSettings:
    """Who a site is, and what it insists on."""

    name: str
    key: Ed25519PrivateKey
    directory: SiteDirectory | None
    fewest: int = FEWEST_SUMMED  # clients that must be asked for a sum
    policy: Policy | None = None  # that every round must have; None: any
    seals: bool = True  # it signs its masked words; not where nothing can change them on the way

    def check(self, terms: Terms) -> None:
        """Refuse terms that this site does not accept."""
        terms.check()
        if self.policy is not None and terms.kind == "train" and terms.limits != self.policy:
            raise UserError(
                "another policy than this site requires: it takes part in rounds under its own"
                " policy only"
            )


@dataclass(frozen=True)
class Offer:
    """What a site was sent, as hashes of what its app will use."""

    terms: Terms
    digest: bytes  # of everything: what sites agree on
    # Of what the app uses, without what only names a run: it is run once, however the server calls
    # it and weighs what comes of it.
    work: bytes
    attempt: int = 0


@dataclass(frozen=True, eq=False)
class SiteFacts:
    """What a site says of itself when it has run its app."""

    size: float
    labelled: Labels = None


class Part(Protocol):
    """What a site adds to the sums of a round."""

    def first(self, announcement: Announcement) -> Words:
        """The words of the first of two sums."""

    def state(self, announcement: Announcement) -> Statement | None:
        """What it says in clear."""

    def words(self, announcement: Announcement) -> Words:
        """The words of the last sum."""


class Work(Protocol):
    """What happens at the site, outside the protocol."""

    def run(self) -> SiteFacts:
        """Train or evaluate on what was agreed, and keep what came of it."""

    def part(self, announcement: Announcement) -> Part:
        """What was kept, as a part of the sums."""

    def forget(self) -> None:
        """Delete what was kept: it is in the sum."""


@dataclass
class SiteRound:
    """What a site knows of the round under way."""

    terms: Terms
    digest: bytes
    work: bytes
    attempt: int
    attempts: int = 1
    members: tuple[str, ...] = ()  # all who were asked
    facts: SiteFacts | None = None  # once the app has run
    signed: bool = False  # a list of survivors: no other attempt after that
    halves: dict[str, SecureSumClient] = field(default_factory=dict)  # by sum
    announced: dict[str, Announcement] = field(default_factory=dict)  # by sum

    def to_json(self) -> str:
        """For the site's own memory only: it holds one-time secrets."""
        facts = self.facts
        labelled = None if facts is None or facts.labelled is None else facts.labelled.tolist()
        table = {
            "terms": self.terms.to_json(),
            "digest": self.digest.hex(),
            "work": self.work.hex(),
            "attempt": self.attempt,
            "attempts": self.attempts,
            "members": list(self.members),
            "facts": None if facts is None else {"size": facts.size, "labelled": labelled},
            "signed": self.signed,
            "halves": {sum: half.to_bytes().decode() for sum, half in self.halves.items()},
            "announced": {sum: text.to_json() for sum, text in self.announced.items()},
        }
        return json.dumps(table)

    @staticmethod
    def of(text: str, settings: SiteSettings) -> SiteRound:
        """From `to_json`."""
        try:
            table: dict[str, Any] = json.loads(text)
            facts = table["facts"]
            if facts is not None:
                marks = facts["labelled"]
                facts = SiteFacts(facts["size"], None if marks is None else np.array(marks, bool))
            halves = {
                sum: SecureSumClient.from_bytes(state.encode(), settings.key, settings.directory)
                for sum, state in table["halves"].items()
            }
            return SiteRound(
                terms=Terms.of(json.loads(table["terms"])),
                digest=bytes.fromhex(table["digest"]),
                work=bytes.fromhex(table["work"]),
                attempt=table["attempt"],
                attempts=table["attempts"],
                members=tuple(table["members"]),
                facts=facts,
                signed=table["signed"],
                halves=halves,
                announced={sum: Announcement.of(text) for sum, text in table["announced"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UserError("the kept state of a secure round is damaged") from None


class SiteMemory(Protocol):
    """What a site remembers from one message to the next; kept before an answer leaves."""

    def load(self) -> SiteRound | None:
        """The round under way."""

    def save(self, round: SiteRound) -> None:
        """Replace it."""

    def was_run(self, work: bytes) -> bool:
        """Whether the app was ever run on this."""

    def note_run(self, work: bytes) -> None:
        """The app is about to be run on this."""


class MemoryOfProcess:
    """A site's memory for as long as the process lives."""

    def __init__(self) -> None:
        self._round: SiteRound | None = None
        self._run: set[bytes] = set()

    def load(self) -> SiteRound | None:
        return self._round

    def save(self, round: SiteRound) -> None:
        self._round = round

    def was_run(self, work: bytes) -> bool:
        return work in self._run

    def note_run(self, work: bytes) -> None:
        self._run.add(work)


class SecureSite:
    """One site's side of one kind of rounds."""

    def __init__(self, settings: SiteSettings, memory: SiteMemory) -> None:
        self.settings = settings
        self._memory = memory

    # ------------------------------------------------------------------------------------- messages

    def offer(self, offer: Offer) -> Keys:
        """Keys for what was sent, signed with its digest. Nothing is run yet."""
        self.settings.check(offer.terms)
        if self._memory.was_run(offer.work):
            under_way = self._memory.load()
            if under_way is None or under_way.digest != offer.digest:
                raise UserError(RUN_BEFORE)
            return self._again(offer.digest, offer.attempt)
        round = SiteRound(offer.terms, offer.digest, offer.work, offer.attempt)
        return self._fresh_keys(round)

    def answer(self, request: Request, work: Work) -> Answer:
        """To any message after the first."""
        if isinstance(request, Again):
            return self._again(request.digest, request.attempt)
        steps: dict[type, Callable[[SiteRound, Any, Work], Answer]] = {
            Meet: self._meet,
            Weigh: self._weigh,
            Add: self._add,
            Sign: self._sign,
            Reveal: self._reveal,
        }
        round = self._memory.load()
        if round is None:
            raise UserError("this site has agreed to no secure round")
        return steps[type(request)](round, request, work)

    def _again(self, digest: bytes, attempt: int) -> Keys:
        """Another attempt at the sums of what was agreed; what was run is not run again."""
        round = self._memory.load()
        if round is None or round.digest != digest:
            raise UserError("this site has agreed to another round since, or to none")
        cut_off = round.facts is None and self._memory.was_run(round.work)
        if round.signed or cut_off:
            raise UserError(RUN_BEFORE)
        if attempt <= round.attempt or round.attempts >= MOST_ATTEMPTS:
            raise UserError(f"no other attempt at these sums: {round.attempts} were made")
        attempts = round.attempts + 1
        return self._fresh_keys(
            replace(round, attempt=attempt, attempts=attempts, halves={}, announced={})
        )

    def _fresh_keys(self, round: SiteRound) -> Keys:
        settings = self.settings
        for sum in round.terms.sums:
            session = SessionId(round.digest, round.terms.session_name(sum), round.attempt)
            round.halves[sum] = SecureSumClient(
                session, settings.name, settings.key, settings.directory, fewest=settings.fewest
            )
        keys = {sum: half.advertise() for sum, half in round.halves.items()}
        self._memory.save(round)
        return Keys(round.digest, keys)

    def _meet(self, round: SiteRound, request: Meet, work: Work) -> Joined:
        """Check that enough others have signed the same digest; then run the app, once."""
        if set(request.keys) != set(round.halves):
            raise UserError("the server passes on keys for other sums than were agreed")
        (members, *others) = {tuple(sorted(keys)) for keys in request.keys.values()}
        if others or round.members not in ((), members):
            raise UserError("the server names other members than before for the same sums")
        shares = {sum: round.halves[sum].share(keys) for sum, keys in request.keys.items()}
        round.members = members
        if round.facts is None:
            if self._memory.was_run(round.work):  # and was cut off: it may be asked for nothing
                raise UserError(RUN_BEFORE)
            self._memory.note_run(round.work)
            round.facts = work.run()
        self._memory.save(round)
        return Joined(round.facts.size, round.facts.labelled, shares)

    def _weigh(self, round: SiteRound, request: Weigh, work: Work) -> Statement:
        """How this site weighs itself, once for each attempt."""
        sum = round.terms.sums[-1]
        self._check_turn(round, sum)
        if sum in round.announced:
            raise UserError("this site has said how it weighs itself, and says it once")
        self._check_announcement(round, request.announcement)
        statement = work.part(request.announcement).state(request.announcement)
        if statement is None:
            raise UserError("there is nothing to weigh in this round")
        round.announced[sum] = request.announcement
        self._memory.save(round)
        return statement

    def _add(self, round: SiteRound, request: Add, work: Work) -> Masked:
        """This site's words under masks."""
        half = self._half(round, request.sum)
        announcement = request.announcement
        self._check_turn(round, request.sum)
        self._check_announcement(round, announcement)
        before = round.announced.get(request.sum)
        if before is not None and before != replace(announcement, proposed={}, weights={}):
            raise UserError(
                "the server's description of this sum has changed since this site agreed to it"
            )
        part = work.part(announcement)
        if request.sum == FIRST_SUM:
            statement = None
            words = part.first(announcement)
        else:
            statement = part.state(announcement)
            words = part.words(announcement)
        masked = half.mask(request.shares, words, in_place=True, announced=announcement.digest)
        round.announced[request.sum] = announcement
        self._memory.save(round)
        return Masked(masked, half.seal(masked) if self.settings.seals else None, statement)

    def _sign(self, round: SiteRound, request: Sign, work: Work) -> Signed:
        """This site's word on who is in the sum; from now on there is no other attempt."""
        half = self._half(round, request.sum)
        if request.sum in round.announced:
            announcement = round.announced[request.sum]
            announcement.check_summed(request.survivors, members=len(round.members))
        signature = half.sign(request.survivors)
        round.signed = True
        self._memory.save(round)
        return Signed(signature)

    def _reveal(self, round: SiteRound, request: Reveal, work: Work) -> Revealed:
        """The shares that open the sum; after the last one the update is gone."""
        shares = self._half(round, request.sum).reveal(request.survivors, request.signatures)
        self._memory.save(round)
        if request.sum == round.terms.sums[-1]:
            work.forget()
        return Revealed(shares)

    # --------------------------------------------------------------------------------------- checks

    def _half(self, round: SiteRound, sum: str) -> SecureSumClient:
        if sum not in round.halves:
            raise UserError("there is no such sum in the round that this site agreed to")
        return round.halves[sum]

    def _check_turn(self, round: SiteRound, sum: str) -> None:
        """Refuse to take part in the last of two sums before the first is open."""
        earlier = round.terms.sums[: round.terms.sums.index(sum)]
        if any(round.halves[name].stage != "revealed" for name in earlier):
            raise UserError("the sum before this one is not open yet")

    def _check_announcement(self, round: SiteRound, announcement: Announcement) -> None:
        """Refuse what does not fit the terms, the members, or this site itself."""
        if announcement.terms != round.terms:
            raise UserError("the server describes another round than this site agreed to")
        if round.facts is None:
            raise UserError("this site has not been shown that enough others agree")
        announcement.check()
        names = [party.name for party in announcement.parties]
        if not set(names) <= set(round.members):
            raise UserError("the server announces clients that were not asked")
        announcement.check_summed(names, members=len(round.members))
        party = announcement.parties[announcement.place(self.settings.name)]
        if party.size != round.facts.size:
            raise UserError("the size that the server announces for this site is not its own")
        mine = round.facts.labelled
        if party.labelled != (None if mine is None else tuple(mine.tolist())):
            raise UserError("the findings that it labels are not those that were announced")

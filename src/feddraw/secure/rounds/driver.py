"""The server's side of a secure round, whatever carries its messages.

A round is a few exchanges of one message to each site and one back. D is the digest of everything
that a site's app will use, as the site received it: the terms, the model, what is beside it, what
is frozen in it, and all settings. The offer goes to K sites, the members of the round; t is more
than two thirds of them.

    server → site                                site → server
    0 offer   the model and the terms            one-time keys, signed with D
    1 Meet    all keys                           with t signatures under the same D the app runs
                                                 once: size, labelled findings; everyone's shares
    2 Add     sizes of all; the others' shares   where a method needs two sums: masked numbers
    3 Weigh   the same and what came of it       under a policy: own weight and steps
    4 Add     the same and the policy's          masked move, masked loss and length;
              weights; the others' shares        own weight and steps
    5 Sign    who is in the sum                  a signature under the list
    6 Reveal  t signatures under the list        the shares that open the sum

Sign and Reveal follow each Add. What a signature covers, beside the purpose, D, the sum, the
attempt, the sender and the kind of message: keys: the keys. Shares: who was asked with all their
keys (the context), and all shares of the sender. Masked words: context, words. The list: context,
who sent shares, who is in the sum, a hash of all that was announced (sizes, findings, first sum,
proposed weights and weights). Opened shares: the same list, the shares.

So no value of a site leaves it before it has seen t signatures under the digest of what its
app uses, and no sum opens unless the same was announced to t sites; masks are made from what was
announced, so words of a site that got another announcement make noise of the sum. A site that falls
silent, fails or is refused is left out from there on, with the reason. Where too few are left
after the keys and before any list is signed, the sums are tried once more among the same members;
after that never, because a second sum over other sites would show the difference. Where too few
keys came, there is no second attempt: who sent none has had no offer, or had its time. `site` is
the other side.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from feddraw.errors import UserError
from feddraw.secure.rounds.messages import (
    Add,
    Again,
    Answer,
    Joined,
    Keys,
    Masked,
    Meet,
    Refusal,
    Request,
    Reveal,
    Revealed,
    Sign,
    Signed,
    Weigh,
)
from feddraw.secure.rounds.terms import FIRST_SUM, Announcement, Party, Statement, Terms
from feddraw.secure.sums.fixed_point import Words
from feddraw.secure.sums.server import SecureSumServer
from feddraw.secure.sums.session import SecureSumFailed, Session, session_threshold
from feddraw.secure.sums.signing_keys import SiteDirectory
from feddraw.text import one_line, safe_line

log = logging.getLogger("feddraw")

ATTEMPTS = 2  # at the sums of a round
LONGEST_REASON = 300  # characters of why a site is left out
OTHER_OFFER = "this site was sent other settings or another model than most"

Kind = TypeVar("Kind")


class Transport(Protocol):
    """How requests reach sites, and answers come back."""

    def ask(self, requests: Mapping[str, Request]) -> Iterable[tuple[str, Answer]]:
        """Send each site its request; answers with their sites' names, as they come.

        A site that does not answer is left out; one that refuses answers with a `Refusal`.
        """


class Rules(Protocol):
    """What a round's sums are for: what the driver must know beside the protocol."""

    def party(self, name: str, joined: Joined) -> Party:
        """What a site says of itself; UserError if it makes no sense."""

    def misfits(self, announcement: Announcement) -> Mapping[str, str]:
        """By name, why sites cannot be in one sum with the others."""

    def conclude(
        self, announcement: Announcement, total: Words, summed: Sequence[str]
    ) -> Announcement:
        """With what comes of the first of two sums."""

    def check_statement(
        self, announcement: Announcement, name: str, statement: Statement | None
    ) -> None:
        """Refuse what a site must not say of itself."""

    def limit(self, announcement: Announcement, proposals: Mapping[str, Statement]) -> Announcement:
        """With the weights that the policy makes of those that sites propose."""


@dataclass(frozen=True, eq=False)
class Opened:
    """The last sum of a round without its masks, and what belongs to it."""

    words: Words
    survivors: tuple[str, ...]  # who is in it
    announcement: Announcement
    statements: Mapping[str, Statement]  # by client in the sum, what it said in clear


@dataclass(eq=False)
class SecureRound:
    """One secure round at the server."""

    terms: Terms
    transport: Transport
    rules: Rules
    directory: SiteDirectory | None = None
    left_out: dict[str, str] = field(default_factory=dict)  # by site; empty: it fell silent
    parties: tuple[Party, ...] = ()  # those that said their size

    def run(self, members: Sequence[str], keys: Mapping[str, Keys], attempt: int = 0) -> Opened:
        """From the keys that came in answer to the offer to the opened sum.

        `members` are all sites to which the offer went. `SecureSumFailed` or `TooFewSummed` where
        there is no sum.
        """
        digest = self._agreed_digest(keys)
        for number in range(ATTEMPTS):
            trial = _Attempt(self, digest, attempt + number, tuple(members))
            try:
                return trial.open(keys)
            except SecureSumFailed as failure:
                worth_another = trial.met and not trial.signing and number + 1 < ATTEMPTS
                if not worth_another or not self._may_come_back(members):
                    raise
                keys = self._fresh_keys(members, digest, attempt + number + 1)
                if not keys:
                    raise
                why = safe_line(str(failure))
                log.warning("%s: it was tried once more with fresh keys", why)
        raise AssertionError("the last attempt returns or raises")

    def _agreed_digest(self, keys: Mapping[str, Keys]) -> bytes:
        """What most sites were sent; a site that was sent anything else takes no part."""
        counts = Counter(answer.digest for answer in keys.values())
        if not counts:
            raise SecureSumFailed("no site sent keys")
        digest = counts.most_common(1)[0][0]
        for name, answer in keys.items():
            if answer.digest != digest:
                self.leave_out(name, OTHER_OFFER)
        return digest

    def _may_come_back(self, members: Sequence[str]) -> bool:
        """Whether enough sites would be there if all that fell silent came back."""
        refused = sum(bool(reason) for reason in self.left_out.values())
        return len(members) - refused >= session_threshold(len(members))

    def _fresh_keys(self, members: Sequence[str], digest: bytes, attempt: int) -> dict[str, Keys]:
        """Keys for another attempt, of all that are there again; empty if none are."""
        silent = [name for name, reason in self.left_out.items() if not reason]
        refused = {name: reason for name, reason in self.left_out.items() if reason}
        self.left_out = dict(refused)
        requests = {name: Again(digest, attempt) for name in members if name not in refused}
        keys = {
            name: answer for name, answer in self.answers(requests, Keys) if answer.digest == digest
        }
        if not keys:
            self.left_out = refused | dict.fromkeys(silent, "")
        return keys

    def answers(
        self, requests: Mapping[str, Request], kind: type[Kind]
    ) -> Iterator[tuple[str, Kind]]:
        """Answers of the right kind, as they come; whoever sends none is left out."""
        answered = set()
        for name, answer in self.transport.ask(requests):
            if name not in requests or name in answered:
                continue
            answered.add(name)
            if isinstance(answer, kind):
                yield name, answer
            elif isinstance(answer, Refusal):
                self.leave_out(name, answer.reason)
            else:
                self.leave_out(name, "it answers something else than it was asked for")
        for name in requests.keys() - answered:
            self.left_out.setdefault(name, "")

    def leave_out(self, name: str, reason: str) -> None:
        """A site takes no part from here on, and the ledger will say why."""
        self.left_out.setdefault(name, one_line(reason, LONGEST_REASON))
        log.warning("%s is left out of a secure sum: %s", safe_line(name), safe_line(reason))

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """Around the use of what came from a site: it is left out if that cannot be used."""
        try:
            yield
        except UserError as error:
            self.leave_out(name, str(error))


class _Attempt:
    """One attempt at the sums of a round."""

    def __init__(
        self, round: SecureRound, digest: bytes, attempt: int, members: tuple[str, ...]
    ) -> None:
        self._round = round
        self._members = members
        self._sums = {}
        for sum in round.terms.sums:
            session = Session(digest, round.terms.session_name(sum), attempt, members)
            self._sums[sum] = SecureSumServer(session, round.directory)
        self.met = False  # enough sites sent keys, which all were told
        self.signing = False  # sites were asked to sign a list

    def open(self, keys: Mapping[str, Keys]) -> Opened:
        for name, answer in keys.items():
            if name not in self._round.left_out:
                with self._round.using(name):
                    self._take_keys(name, answer)
        announcement = self._fitting(self._meet())
        last = self._round.terms.sums[-1]
        if FIRST_SUM in self._sums:
            total, survivors, _ = self._open_sum(FIRST_SUM, announcement)
            announcement = self._round.rules.conclude(announcement, total, survivors)
        if announcement.terms.limits.limits_weights:
            announcement = self._round.rules.limit(announcement, self._proposals(announcement))
            announcement.check()
            self._check_summed(announcement, list(announcement.weights))
        total, survivors, statements = self._open_sum(last, announcement)
        of_survivors = {name: statements[name] for name in survivors if name in statements}
        return Opened(total, survivors, announcement, of_survivors)

    def _take_keys(self, name: str, answer: Keys) -> None:
        if set(answer.keys) != set(self._sums):
            raise UserError("keys for other sums than those of the round")
        for sum, content in answer.keys.items():
            self._sums[sum].take_advertised(name, content)

    def _meet(self) -> Announcement:
        """Everyone's keys go to everyone; who they are and shares for the others come back."""
        advertised = {sum: server.close_keys() for sum, server in self._sums.items()}
        self.met = True
        first = next(iter(advertised.values()))
        request = Meet(advertised)
        requests = {name: request for name, content in first.items() if content}
        parties: dict[str, Party] = {}
        for name, joined in self._round.answers(requests, Joined):
            with self._round.using(name):
                parties[name] = self._take_joined(name, joined)
        ordered = [parties[name] for name in first if name in parties]
        return Announcement(self._round.terms, tuple(ordered))

    def _take_joined(self, name: str, joined: Joined) -> Party:
        party = self._round.rules.party(name, joined)
        party.check(self._round.terms.kind)
        if set(joined.shares) != set(self._sums):
            raise UserError("shares for other sums than those of the round")
        for sum, shares in joined.shares.items():
            self._sums[sum].take_shares(name, shares)
        return party

    def _fitting(self, announcement: Announcement) -> Announcement:
        """Without those whose size or findings would make the sum fail for all."""
        self._round.parties = announcement.parties
        announcement = self._without(announcement, self._round.rules.misfits(announcement))
        rare = announcement.labelling_rare_findings(len(self._members))
        if len(announcement.parties) - len(rare) >= session_threshold(len(self._members)):
            announcement = self._without(announcement, rare)
        announcement.check()
        self._check_summed(announcement, [party.name for party in announcement.parties])
        return announcement

    def _without(self, announcement: Announcement, misfits: Mapping[str, str]) -> Announcement:
        """Without some sites, which are left out with the reasons given."""
        for name, reason in misfits.items():
            self._round.leave_out(name, reason)
        fitting = tuple(party for party in announcement.parties if party.name not in misfits)
        return Announcement(announcement.terms, fitting)

    def _check_summed(self, announcement: Announcement, names: Sequence[str]) -> None:
        announcement.check_summed(names, members=len(self._members))

    def _proposals(self, announcement: Announcement) -> dict[str, Statement]:
        """How each site weighs itself."""
        proposals: dict[str, Statement] = {}
        requests = dict.fromkeys(self._there(announcement), Weigh(announcement))
        for name, statement in self._round.answers(requests, Statement):
            with self._round.using(name):
                self._round.rules.check_statement(announcement, name, statement)
                proposals[name] = statement
        needed = session_threshold(len(self._members))
        if len(proposals) < needed:
            raise SecureSumFailed(
                f"the secure sum failed: {len(proposals)} of {len(self._members)} clients said how"
                f" they weigh themselves, {needed} are needed"
            )
        return proposals

    def _there(self, announcement: Announcement) -> list[str]:
        left_out = self._round.left_out
        return [party.name for party in announcement.parties if party.name not in left_out]

    def _open_sum(
        self, sum: str, announcement: Announcement
    ) -> tuple[Words, tuple[str, ...], dict[str, Statement]]:
        """A sum from the masked words of those that are there to its opening."""
        server = self._sums[sum]
        server.announced = announcement.digest
        statements: dict[str, Statement] = {}
        sharers = set(server.close_shares())
        there = [name for name in self._there(announcement) if name in sharers]
        requests = {name: Add(sum, announcement, server.shares_for(name)) for name in there}
        for name, masked in self._round.answers(requests, Masked):
            with self._round.using(name):
                if sum != FIRST_SUM:
                    self._round.rules.check_statement(announcement, name, masked.statement)
                server.take_masked(name, masked.words, masked.seal)
                if masked.statement is not None:
                    statements[name] = masked.statement
        for name, reason in server.misfits.items():
            self._round.leave_out(name, reason)
        survivors = server.close_values()
        self._check_summed(announcement, survivors)
        self.signing = True
        sign = Sign(sum, survivors)
        for name, signed in self._round.answers(dict.fromkeys(survivors, sign), Signed):
            with self._round.using(name):
                server.take_signature(name, signed.signature)
        signatures = server.close_signatures()
        reveal = Reveal(sum, survivors, signatures)
        for name, revealed in self._round.answers(dict.fromkeys(signatures, reveal), Revealed):
            with self._round.using(name):
                server.take_revealed(name, revealed.shares)
        return server.open_total(), survivors, statements

"""`secure=True`: training and evaluation in which the server sees sums over the clients, and no
client's own part.

Flower's messages are the transport of `feddraw.secure.rounds.driver`. The strategy sends the offer,
with the model; all later messages go from here.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from feddraw.core import MOST_IMAGES, Heads, why_not_secure
from feddraw.errors import UserError
from feddraw.flower import round_report, sampling, score_histograms, secure_messages
from feddraw.flower.clear_rounds import RoundOutcome
from feddraw.flower.evaluation_record import TakenEvaluations, evaluations_in_sum
from feddraw.flower.frozen_layers import FROZEN
from feddraw.flower.method_as_text import method_as_text
from feddraw.flower.reply_intake import SMALL_TENSORS, Reply, client_in_reply, why_too_large
from feddraw.flower.roster import Roster
from feddraw.flower.site_errors import reason_in_error
from feddraw.flower.strategy_options import StrategyOptions
from feddraw.secure.rounds import rules_of_method
from feddraw.secure.rounds.counts_part import CountingRules
from feddraw.secure.rounds.driver import SecureRound
from feddraw.secure.rounds.messages import Answer, Keys, Meet, Refusal, Request
from feddraw.secure.rounds.outcome import SecureOutcome, outcome_of, result_of_outcome
from feddraw.secure.rounds.terms import COUNTS_SUM, EVALUATE, TRAIN, Terms, terms_of_training
from feddraw.secure.rounds.training_rules import TrainingRules
from feddraw.secure.sums.large_digest import large_digest
from feddraw.secure.sums.one_time_keys import read_one_time_keys
from feddraw.secure.sums.session import SessionId
from feddraw.secure.sums.signing_keys import SiteDirectory
from feddraw.server.round import Round, RoundResult
from feddraw.text import grouped, one_line

log = logging.getLogger("flwr")

# Seconds between two looks for answers, growing while none comes.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
RESERVED_NAME = re.compile(r"(absent|stranger) \d+")  # the ledger's own, for clients without a name


@dataclass(frozen=True)
class _Offer:
    """What was offered to the sites, and as which attempt."""

    terms: Terms
    attempt: int

    def is_signed(self, name: str, reply: Reply, directory: SiteDirectory | None) -> bool:
        """Whether a reply's keys are signed with the key that this name has in the directory."""
        if directory is None:
            return False
        try:
            answer = secure_messages.keys_of_records(reply.content)
            for sum in self.terms.sums:
                session = SessionId(answer.digest, self.terms.session_name(sum), self.attempt)
                read_one_time_keys(session, name, answer.keys.get(sum, b""), directory)
        except UserError:
            return False
        return True


@dataclass(frozen=True, eq=False)
class SecureAnswers:
    """The members of a secure round, those that answered the offer, and how they are called.

    Sites sign under the names that they give themselves; the ledger has those that the server gives
    them.
    """

    by_site: Mapping[str, Reply]  # by the name under which the site signs
    impostors: Mapping[str, str]  # of these, those under another's name, with what they say
    members: tuple[str, ...]  # all to whom the offer went
    grid: Grid
    timeout: float

    @staticmethod
    def of(
        replies: Sequence[Reply],
        offered: sampling.Request,
        roster: Roster,
        offer: _Offer,
        directory: SiteDirectory | None,
    ) -> SecureAnswers:
        """The valid replies to what was offered.

        A name that several sites give themselves belongs to the one that signs with its key in the
        directory, else to the first of the clients; the others are known by their nodes.
        """
        if offered.grid is None:
            raise UserError(
                "secure sums take several messages: this strategy must have sent the first one"
                " itself"
            )
        by_site: dict[str, Reply] = {}
        impostors: dict[str, str] = {}
        by_name = grouped((roster.called[reply.name], reply) for reply in replies)
        for name, claimants in by_name.items():
            signing = [reply for reply in claimants if offer.is_signed(name, reply, directory)]
            owner, *_ = signing or claimants
            for reply in claimants:
                site = name if reply is owner else f"node {reply.node}"
                by_site[site] = reply
                if reply is not owner:
                    impostors[site] = f"it calls itself {name}, which is another site's name"
        answered = {reply.node for reply in replies}
        others = []
        for node in offered.nodes:
            if node not in answered:
                label = roster.label(node)
                name = roster.called.get(label, label)
                others.append(f"node {node}" if name in by_site else name)
        members = (*by_site, *others)
        return SecureAnswers(by_site, impostors, members, offered.grid, offered.timeout)

    @property
    def ledger_names(self) -> dict[str, str]:
        """By the name under which a site signs, its name in the ledger."""
        return {site: reply.name for site, reply in self.by_site.items()}

    def transport(self, kind: str, group: str, most_words: int) -> FlowerTransport:
        nodes = {site: reply.node for site, reply in self.by_site.items()}
        return FlowerTransport(self.grid, nodes, kind, group, self.timeout, most_words)

    def keys(self, round: SecureRound) -> dict[str, Keys]:
        """The keys that came in answer to the offer."""
        keys = {}
        for site, reply in self.by_site.items():
            with round.using(site):
                if site in self.impostors:
                    raise UserError(self.impostors[site])
                if RESERVED_NAME.fullmatch(site):
                    raise UserError(f"it calls itself {site}, which is the ledger's own word")
                keys[site] = secure_messages.keys_of_records(reply.content)
        return keys


@dataclass(eq=False)
class FlowerTransport:
    """The sites of one round by the names that they give themselves, and how they are reached."""

    grid: Grid
    nodes: Mapping[str, int]
    kind: str  # of messages: train or evaluate
    group: str
    timeout: float
    most_words: int  # that an honest answer has
    holding: set[int] = field(default_factory=set)  # nodes that say they hold the frozen layers
    seconds: dict[str, float] = field(default_factory=dict)  # by site, how long training took
    _messages: int = 0  # stages so far, so that no answer is taken for that of another

    def ask(self, requests: Mapping[str, Request]) -> Iterator[tuple[str, Answer]]:
        """Answers as they come, so that the server need not hold all of them at the same time."""
        self._messages += 1
        group = f"{self.group} {self._messages}"
        reached = {name: request for name, request in requests.items() if name in self.nodes}
        names = {self.nodes[name]: name for name in reached}
        messages = []
        contents: dict[int, RecordDict] = {}  # one content for all that get the same request
        for name, request in reached.items():
            if id(request) not in contents:
                contents[id(request)] = secure_messages.request_to_records(request)
            content = contents[id(request)]
            messages.append(Message(content, self.nodes[name], self.kind, group_id=group))
        began = time.perf_counter()
        for message in self._replies(messages):
            # Of a node that is gone, the SuperLink's own comes.
            name = names.get(message.metadata.src_node_id, "")
            if name:
                if isinstance(reached[name], Meet):
                    self.seconds[name] = time.perf_counter() - began
                yield name, self._answer(message, type(reached[name]), group)

    def _answer(self, message: Message, request: type, group: str) -> Answer:
        if message.has_error():
            return Refusal(f"its app failed: {reason_in_error(message.error.reason)}")
        if message.metadata.group_id != group:
            return Refusal(f"it answers '{one_line(message.metadata.group_id)}', not '{group}'")
        if why := why_too_large(message.content, SMALL_TENSORS + 8 * self.most_words):
            return Refusal(why)
        if FROZEN in client_in_reply(message.content):
            self.holding.add(message.metadata.src_node_id)
        try:
            return secure_messages.answer_of_records(request, message.content)
        except UserError as error:
            return Refusal(str(error))

    def _replies(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Each reply once. It ends when all are there or the time is over; a node that is gone
        answers with an error.
        """
        waiting = {identity for identity in self.grid.push_messages(messages) if identity}
        deadline = time.monotonic() + self.timeout
        pause = SHORTEST_PAUSE
        while waiting and time.monotonic() < deadline:
            replies = list(self.grid.pull_messages(waiting))
            waiting -= {message.metadata.reply_to_message_id for message in replies}
            if not replies:
                time.sleep(pause)
            pause = SHORTEST_PAUSE if replies else min(LONGEST_PAUSE, 1.5 * pause)
            while replies:
                yield replies.pop(0)


@dataclass(eq=False)
class SecureRounds:
    """Rounds of which the server may see sums only: offers that go with the strategy's messages,
    and all that follows the answers to these.
    """

    options: StrategyOptions
    roster: Roster
    size_key: str
    _offers: dict[str, _Offer] = field(default_factory=dict)  # by kind of round, the last one

    def __post_init__(self) -> None:
        method = self.options.method
        if why := why_not_secure(method):
            raise UserError(
                f"this method cannot run under secure sums: {why} (`feddraw list methods` shows"
                " which can)"
            )
        rules_of_method.check_policy(
            method, self.options.policy, clear_weights=self.options.clear_weights
        )
        gate = self.options.gate
        if gate.norm == "refuse" or gate.clip:
            raise UserError(
                "a secure sum cannot leave out or clip single updates: use norm 'off' or 'warn',"
                " clip 0"
            )
        method_as_text(method)  # an error where its rules cannot travel
        large_digest(())  # and where the package for it is missing, not in every round

    def offer_to_train(self, round: int, rounds: int, classifier: Heads) -> dict[str, Any]:
        """The order that goes with a model to train."""
        terms = terms_of_training(
            method_as_text(self.options.method),
            rules_of_method.sums_of(self.options.method),
            round,
            rounds,
            self.options.policy,
            clear_weights=self.options.clear_weights,
        )
        return self._offer(
            replace(terms, reading={"size": self.size_key, "classifier": classifier})
        )

    def offer_to_count(self, round: int, rounds: int, findings: int) -> dict[str, Any]:
        """What goes with an evaluation whose counts are to be added up under masks."""
        return self._offer(Terms(EVALUATE, (COUNTS_SUM,), round, rounds, findings=findings))

    def _offer(self, terms: Terms) -> dict[str, Any]:
        """Attempts are counted by the clock, so that a server that was killed and goes on can try
        a sum again.
        """
        offer = _Offer(terms, time.time_ns())
        self._offers[terms.kind] = offer
        return secure_messages.order_of_offer(terms, offer.attempt)

    def train(
        self, round: Round, replies: Sequence[Reply], offered: sampling.Request, group: str
    ) -> RoundOutcome:
        """The round from sums of masked updates; `replies` are the sites' answers to the offer."""
        offer = self._offers[TRAIN]
        directory = self.options.site_keys
        answers = SecureAnswers.of(replies, offered, self.roster, offer, directory)
        layout = round.sent.layout
        # Beside the model there are some numbers by output; SMALL_TENSORS has room for these.
        most_words = layout.length("param") + layout.length("buffer")
        transport = answers.transport(TRAIN, group, most_words)
        rules = TrainingRules(round.method, self.options.gate, layout, round.state)
        secure_round = SecureRound(offer.terms, transport, rules, directory)
        keys = answers.keys(secure_round)
        outcome = outcome_of(secure_round, answers.members, keys, offer.attempt)
        if outcome.failure:
            log.error("%s", outcome.failure)
        names = answers.ledger_names
        places = {name: number for number, name in enumerate(round.clients)}
        numbers = {site: places[name] for site, name in names.items()}
        result = result_of_outcome(round, rules, outcome, numbers)
        round_report.warn_of_sizes(
            {entry.client: entry.size for entry in result.ledger if entry.weighted}
        )
        return RoundOutcome(
            result=result,
            refused=_refused(outcome, names),
            unused=_unused(outcome, names),
            client_seconds={names[site]: taken for site, taken in transport.seconds.items()},
            reports=self._report(outcome, result),
            holding=frozenset(transport.holding),
        )

    def _report(self, outcome: SecureOutcome, result: RoundResult) -> list[RecordDict]:
        """Totals over the clients that counted; none where nobody did."""
        if not result.weights:
            return []
        summed = _summed(outcome)
        images = sum(party.size for party in outcome.parties if party.name in summed)
        metrics = MetricRecord({self.size_key: float(images), "loss": result.loss})
        return [RecordDict({"metrics": metrics})]

    def count(
        self, replies: Sequence[Reply], offered: sampling.Request, group: str
    ) -> TakenEvaluations:
        """All sites' counts as those of one site; none if the sum fails or nobody answered."""
        if not replies:
            return TakenEvaluations([], [])
        offer = self._offers[EVALUATE]
        directory = self.options.site_keys
        answers = SecureAnswers.of(replies, offered, self.roster, offer, directory)
        findings = offer.terms.findings
        most_words = score_histograms.words_of(findings)
        transport = answers.transport(EVALUATE, group, most_words)
        secure_round = SecureRound(offer.terms, transport, CountingRules(findings), directory)
        keys = answers.keys(secure_round)
        outcome = outcome_of(secure_round, answers.members, keys, offer.attempt)
        names = answers.ledger_names
        counts: RecordDict | None = None
        try:
            counts = self._opened_counts(outcome, offer.terms)
        except UserError as error:
            log.error("no evaluation: %s", error)
        summed = [name for site, name in names.items() if site in _summed(outcome)]
        return evaluations_in_sum(counts, summed, _refused(outcome, names), _unused(outcome, names))

    def _opened_counts(self, outcome: SecureOutcome, terms: Terms) -> RecordDict:
        """The sum as one site with all images would have sent it; UserError where there is none, or
        none that honest sites make.
        """
        if outcome.opened is None:
            raise UserError(outcome.failure)
        words = outcome.opened.words
        if (words > len(outcome.opened.survivors) * MOST_IMAGES).any():
            raise UserError("a site counted more images than there can be, or fewer than 0")
        try:
            metrics = score_histograms.histograms_from_words(words[:-1], terms.findings)
        except ValueError:
            raise UserError(f"a sum of {len(words)} words") from None
        images = int(words[-1])
        metrics[self.size_key] = images
        counts = RecordDict({"metrics": metrics})
        if why := score_histograms.why_implausible(counts, images, terms.findings):
            raise UserError(f"of the sum, {why}")
        return counts


def _refused(outcome: SecureOutcome, names: Mapping[str, str]) -> dict[str, str]:
    """By the ledger's name, what was wrong with sites that answered the offer."""
    return {
        names[site]: why
        for site, why in outcome.left_out.items()
        if why and site in names and site not in _summed(outcome)
    }


def _unused(outcome: SecureOutcome, names: Mapping[str, str]) -> dict[str, str]:
    """By the ledger's name, the sites that did their part, where the sum failed because of others
    (it can fail before a site has said more than its keys).
    """
    if not outcome.failure:
        return {}
    return {name: outcome.failure for site, name in names.items() if site not in outcome.left_out}


def _summed(outcome: SecureOutcome) -> set[str]:
    return set(outcome.opened.survivors) if outcome.opened else set()

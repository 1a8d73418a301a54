"""Secure rounds of clients that are all in this process: the sites and the driver of a federation,
without a wire.

Every client has a signing key of its own, made here for the run, and every sum has fresh keys,
masks and shares. So a study under `secure = true` shows what a federation under it would give, to
the bit: masks cancel, whatever they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddraw.core import Update
from feddraw.errors import RuleMistake, UserError
from feddraw.secure.rounds import rules_of_method
from feddraw.secure.rounds.driver import SecureRound
from feddraw.secure.rounds.messages import (
    Add,
    Again,
    Answer,
    Keys,
    Meet,
    Refusal,
    Request,
    Reveal,
    Sign,
    Weigh,
)
from feddraw.secure.rounds.outcome import outcome_of, result_of_outcome
from feddraw.secure.rounds.site import (
    MemoryOfProcess,
    Offer,
    Part,
    SecureSite,
    SiteFacts,
    SiteSettings,
)
from feddraw.secure.rounds.terms import (
    FIRST_SUM,
    MOVES_SUM,
    Announcement,
    Labels,
    digest_of_offer,
    terms_of_training,
)
from feddraw.secure.rounds.training_rules import TrainingRules
from feddraw.secure.rounds.update_part import UpdatePart
from feddraw.server.gate import Gate
from feddraw.server.policy import Policy
from feddraw.server.round import Round, RoundResult

# By client, the sum and the stage (0 keys to 4 opening) from which on it is silent.
Drops = Mapping[str, tuple[str, int]]
MakePart = Callable[[str, Update, Announcement], Part]
_STAGES: Mapping[type, int] = {Meet: 1, Weigh: 2, Add: 2, Sign: 3, Reveal: 4}


def sites_of_process(names: tuple[str, ...]) -> dict[str, SecureSite]:
    """A site for each client, with a key of its own; all know all public keys."""
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    directory = {name: key.public_key() for name, key in keys.items()}
    sites = {}
    for name, key in keys.items():
        sites[name] = SecureSite(SiteSettings(name, key, directory, seals=False), MemoryOfProcess())
    return sites


@dataclass(eq=False)
class Secure:
    """The third collector, beside `Together` and `Streaming`: the server sees sums only.

    All clients are in this process. With one sum and no limits on weights an update is masked,
    added and forgotten before the next one arrives.
    """

    clients: Sequence[str]
    sizes: Sequence[int]  # images, by client
    labelled: Sequence[Labels] = ()  # by client; left out: all label all
    gate: Gate = field(default_factory=Gate)
    policy: Policy = field(default_factory=Policy)
    clear_weights: bool = False  # clients say their weights, also where these tell of their updates
    section: Mapping[str, Any] = field(default_factory=dict)  # the method's name and settings
    drops: Callable[[int], Drops] = lambda round: {}  # who falls silent in a round, for tests
    in_turn: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._sites = sites_of_process(tuple(self.clients))

    def __call__(self, round: Round, arriving: Iterable[Update]) -> RoundResult:
        """One round, from the clients' updates as they arrive; where the sum fails, the model
        stays as it was.
        """
        rules_of_method.check_method(round.method)
        sums = rules_of_method.sums_of(round.method)
        terms = terms_of_training(
            self.section,
            sums,
            round.number,
            round.rounds,
            self.policy,
            clear_weights=self.clear_weights,
        )
        digest = digest_of_offer(terms, round.sent, round.method.broadcast(round.state))
        numbers = {self.clients[client]: client for client in round.sampled}

        def make_part(name: str, update: Update, announcement: Announcement) -> Part:
            return UpdatePart(round.method, announcement, name, round.sent, update, self.gate)

        transport = InProcess(
            sites={name: self._sites[name] for name in numbers},
            facts={name: self._facts(client) for name, client in numbers.items()},
            arriving=self._named(arriving),
            make_part=make_part,
            keeps=len(sums) > 1 or self.policy.limits_weights,
            drops=self.drops(round.number),
        )
        rules = TrainingRules(round.method, self.gate, round.sent.layout, round.state)
        secure_round = SecureRound(terms, transport, rules)
        keys = transport.offer(Offer(terms, digest, work=digest), secure_round)
        outcome = outcome_of(secure_round, tuple(numbers), keys)
        for _ in transport.arriving:
            pass  # of clients that were left out: an engine is done when all have answered
        return result_of_outcome(round, rules, outcome, numbers)

    def _facts(self, client: int) -> SiteFacts:
        return SiteFacts(self.sizes[client], self.labelled[client] if self.labelled else None)

    def _named(self, arriving: Iterable[Update]) -> Iterator[tuple[str, Update]]:
        for update in arriving:
            if 0 <= update.client < len(self.clients):
                yield self.clients[update.client], update


@dataclass(eq=False)
class InProcess:
    """The transport: a call instead of a message, and updates as an engine gives them."""

    sites: Mapping[str, SecureSite]
    facts: Mapping[str, SiteFacts]  # by client, known before it trains
    arriving: Iterator[tuple[str, Update]]  # by name, as they come
    make_part: MakePart
    keeps: bool = False  # updates, because a round needs them in more than one message
    drops: Drops = field(default_factory=dict)
    _kept: dict[str, Update] = field(default_factory=dict)

    def offer(self, offer: Offer, round: SecureRound) -> dict[str, Keys]:
        """Send all sites what is to be trained; their keys."""
        keys = {}
        for name, site in self.sites.items():
            if not self._silent(name, "", 0):
                with round.using(name):
                    keys[name] = site.offer(offer)
        return keys

    def ask(self, requests: Mapping[str, Request]) -> Iterator[tuple[str, Answer]]:
        """Answers in the order of the requests, or in that in which updates come.

        There is no second attempt: updates are not kept for one.
        """
        if any(isinstance(request, Again) for request in requests.values()):
            return
        for name, update in self._with_updates(requests):
            request = requests[name]
            if not self._silent(name, getattr(request, "sum", ""), _STAGES[type(request)]):
                yield name, self._answer(name, request, update)

    def _answer(self, name: str, request: Request, update: Update | None) -> Answer:
        work = _WorkOfProcess(name, self.facts[name], update, self.make_part)
        try:
            return self.sites[name].answer(request, work)
        except RuleMistake:
            raise
        except UserError as error:
            return Refusal(str(error))

    def _with_updates(self, requests: Mapping[str, Request]) -> Iterator[tuple[str, Update | None]]:
        """The sites that are asked, with their updates where the answer needs them."""
        kind = type(next(iter(requests.values()), None))
        if kind not in (Weigh, Add):
            yield from dict.fromkeys(requests).items()
            return
        for name in list(self._kept):
            if name in requests:
                yield name, self._kept[name]
        seen = set(self._kept)
        for name, update in self.arriving:
            if name in seen:
                continue
            seen.add(name)
            if self.keeps:
                self._kept[name] = update
            if name in requests:
                yield name, update

    def _silent(self, name: str, sum: str, stage: int) -> bool:
        """Whether a client has fallen silent by then; keys and shares of all sums go together."""
        if name not in self.drops:
            return False
        dropped_sum, dropped_stage = self.drops[name]
        if stage < 2 or dropped_stage < 2:
            return stage >= dropped_stage
        order = (FIRST_SUM, MOVES_SUM)
        place = order.index(sum) if sum in order else len(order) - 1
        return (place, stage) >= (order.index(dropped_sum), dropped_stage)


@dataclass(frozen=True, eq=False)
class _WorkOfProcess:
    """What a client has to say: it was trained by an engine."""

    name: str
    facts: SiteFacts
    update: Update | None
    make_part: MakePart

    def run(self) -> SiteFacts:
        return self.facts

    def part(self, announcement: Announcement) -> Part:
        if self.update is None:
            raise UserError("it has not trained")
        return self.make_part(self.name, self.update, announcement)

    def forget(self) -> None:
        """The engine's memory is not this site's to delete."""

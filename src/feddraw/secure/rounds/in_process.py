"""Secure rounds of clients that are all in this process: the same code as at a site and at a
server, without a wire.

Every client has a signing key of its own, made here for the run, and every sum has fresh keys,
masks and shares. So a study under `secure = true` shows what a federation under it would give, to
the bit: masks cancel, whatever they are.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from feddraw.core import Method, Model, Parts, State, Update
from feddraw.errors import UserError
from feddraw.secure.rounds import announcement
from feddraw.secure.rounds.announcement import (
    FIRST_SUM,
    MOVES_SUM,
    Announcement,
    ClientAnnouncement,
    TooFewSummed,
)
from feddraw.secure.rounds.client import SecureRoundClient
from feddraw.secure.rounds.round_weights import announce_weights_under_policy
from feddraw.secure.rounds.server import (
    check_client_announcement,
    inform_of_first_sum,
    secure_round_result,
)
from feddraw.secure.sums.in_process import InProcessSecureSum
from feddraw.secure.sums.session import SecureSumFailed, Session
from feddraw.server.gate import Gate
from feddraw.server.policy import Policy
from feddraw.server.round import RoundResult

Drops = Mapping[
    str, tuple[str, int]
]  # by client, the sum and the stage (0 to 4) from which on it is silent


@dataclass(eq=False)
class InProcessSecureRounds:
    """A federation's rounds under secure sums."""

    clients: Sequence[str]
    sizes: Sequence[int]  # images, by client
    section: Mapping[str, Any]  # the method's name and settings
    labelled: Sequence[NDArray[np.bool_] | None] = ()  # by client; left out: all label all
    drops: Callable[[int], Drops] = (
        lambda round: {}
    )  # who falls silent in a round; nobody does by itself
    run: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        self._keys = {name: Ed25519PrivateKey.generate() for name in self.clients}
        self._directory = {name: key.public_key() for name, key in self._keys.items()}

    def announcement(
        self, sent: str, round: int, rounds: int, asked: Iterable[int], policy: Policy
    ) -> Announcement:
        """What all clients of a round are told at first."""
        labelled = self.labelled or [None] * len(self.clients)
        about = [(self.clients[client], self.sizes[client], labelled[client]) for client in asked]
        parties = [announcement.announced_party(*one) for one in about]
        return announcement.announce_secure_round(
            sent, self.section, round, rounds, parties, policy
        )

    def new_sum(self, sum: str, told: Announcement) -> InProcessSecureSum:
        """A secure sum of all who were asked, the silent ones too: how many may fall silent depends
        on that number.
        """
        names = tuple(party.name for party in told.parties)
        session = Session(self.run, told.round, sum, 0, names)
        before = (FIRST_SUM, MOVES_SUM).index(sum)
        drops = self.drops(told.round)
        silent = {name: stage for name, (which, stage) in drops.items() if which == sum}
        silent |= {
            name: 0
            for name, (which, _) in drops.items()
            if (FIRST_SUM, MOVES_SUM).index(which) < before
        }
        agreed, approve = told.digest(), told.check_summed
        return InProcessSecureSum(
            session, self._keys, self._directory, silent, agreed=agreed, approve=approve
        )

    def round(
        self,
        round: int,
        rounds: int,
        model: Model,
        method: Method,
        state: State,
        updates: Iterable[Update],
        asked: Iterable[int],
        gate: Gate | None = None,
        policy: Policy | None = None,
    ) -> RoundResult:
        """One round, from the clients' updates as they come; where the sum fails, the model stays
        as it was.
        """
        sent = announcement.announced_fingerprint(model, method.broadcast(state))
        told = self.announcement(sent, round, rounds, asked, policy or Policy())
        work = _InProcessRound(self, method, model, gate, told)
        try:
            return work.done(updates, state)
        except (SecureSumFailed, TooFewSummed) as error:
            reasons = dict.fromkeys(work.present, str(error)) | work.refused
            return secure_round_result(
                method, told, model, state, None, {}, self.clients, refused=reasons
            )


@dataclass(eq=False)
class _InProcessRound:
    """One round under way."""

    rounds: InProcessSecureRounds
    method: Method
    model: Model
    gate: Gate | None
    told: Announcement
    refused: dict[str, str] = field(default_factory=dict)  # by client, why it takes no part
    present: list[str] = field(default_factory=list)

    def done(self, updates: Iterable[Update], state: State) -> RoundResult:
        """With one sum and no limits on weights, a client is masked, added and forgotten before the
        next one comes.
        """
        parts: Parts = {}
        clients: Iterable[SecureRoundClient] = filter(None, map(self._client, updates))
        if self.method.secure.sums == 2:
            clients, state, parts = self._first(list(clients), state)
        if self.told.limits().limits_weights:
            clients = self._proposing(list(clients))
        announced: dict[str, ClientAnnouncement] = {}
        sum = self.rounds.new_sum(MOVES_SUM, self.told)
        for mine in clients:
            self._add(sum, mine, announced)
        about = (
            self.method,
            self.told,
            self.model,
            state,
            sum.total(),
            announced,
            self.rounds.clients,
        )
        return secure_round_result(*about, refused=self.refused, parts=parts, gate=self.gate)

    def _client(self, update: Update) -> SecureRoundClient | None:
        """A client's side of the round, if it takes part."""
        name, found = self.rounds.clients[update.client], None
        with self._refusing(name):
            given = (self.method, self.told, name, self.model, update, self.gate)
            found = SecureRoundClient(
                *given, received=self.told.sent
            )  # in one process all get the same
            self.present.append(name)
        return found

    @contextmanager
    def _refusing(self, name: str) -> Iterator[None]:
        """A client whose part cannot be used is left out, and the reason kept."""
        try:
            yield
        except UserError as error:
            self.refused[name] = str(error)

    def _add(
        self,
        sum: InProcessSecureSum,
        mine: SecureRoundClient,
        announced: dict[str, ClientAnnouncement],
    ) -> None:
        said, words = self._proposal(mine), None
        with self._refusing(mine.name):  # a move may be too long for the sum
            words = mine.words(self.told)
        if said is not None and words is not None and sum.add(mine.name, words):
            announced[mine.name] = said

    def _proposal(self, mine: SecureRoundClient) -> ClientAnnouncement | None:
        """How a client weighs itself, if its size allows that."""
        found = None
        with self._refusing(mine.name):
            said = mine.weigh(self.told)
            check_client_announcement(self.method, self.told, self.model.layout, mine.name, said)
            found = said
        return found

    def _first(
        self, waiting: list[SecureRoundClient], state: State
    ) -> tuple[list[SecureRoundClient], State, Parts]:
        """The first of two sums, and who is in it."""
        sum = self.rounds.new_sum(FIRST_SUM, self.told)
        there = []
        for mine in waiting:
            with self._refusing(mine.name):
                if sum.add(mine.name, mine.first(self.told)):
                    there.append(mine)
        names = [mine.name for mine in there]
        self.told, parts, state = inform_of_first_sum(
            self.method, self.told, state, sum.total(), names
        )
        return there, state, parts

    def _proposing(self, clients: list[SecureRoundClient]) -> list[SecureRoundClient]:
        """Under a policy all say first how they weigh themselves."""
        said = {mine.name: self._proposal(mine) for mine in clients}
        proposed = {name: one for name, one in said.items() if one is not None}
        self.told = announce_weights_under_policy(
            self.method, self.told, self.model.layout, proposed
        )
        return [mine for mine in clients if mine.name in proposed]

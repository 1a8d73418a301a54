"""The server's half of secure sums over a Grid: it passes messages on, adds masked words as they come, opens the sum.

A client that falls silent, fails or is refused at a stage is left out from then on, and the reason is kept for the
ledger. Where too few are left, the sum is tried again among those that are, with fresh keys; but never after clients
were asked to open it, because a second sum over other clients would show the difference.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from feddraw.errors import UserError
from feddraw.flower.records import Refused, unpack
from feddraw.flower.reply_intake import one_line
from feddraw.flower.secure_messages import RECORD, Order, digest_of_told, pairs_in, reading
from feddraw.flower.secure_site import WORDS
from feddraw.naming import line
from feddraw.secure_sums.server import Collector
from feddraw.secure_sums.session import FEWEST, SecureSumFailed, Session
from feddraw.secure_sums.signing_keys import Directory

log = logging.getLogger("flwr")

ATTEMPTS = 3  # of one sum, in all
SHORTEST, LONGEST = 0.1, 2.0  # seconds between two looks for answers, growing while none comes

Found = TypeVar("Found")
Told = Mapping[str, str]  # to all clients, the same
Take = Callable[[str, RecordDict], None]
Read = Callable[[str, str], Any]  # what a client says in clear about what it adds, by its name and text
Settle = Callable[[dict[str, Any]], Told]  # what all clients are told once all have said it


@dataclass
class Circle:
    """The clients of one round by the names that they give themselves, and how they are reached."""

    grid: Grid
    nodes: Mapping[str, int]  # of those that answered the first message
    kind: str  # of messages: train or evaluate
    group: str
    timeout: float
    reasons: dict[str, str] = field(default_factory=dict)  # why clients are left out; empty: they fell silent

    @property
    def there(self) -> list[str]:
        return [name for name in self.nodes if name not in self.reasons]

    def ask(self, order: Order, contents: Mapping[str, Mapping[str, bytes]], take: Take) -> None:
        """Ask, and take answers as they come; one that cannot be taken is refused by name."""
        group = f"{self.group} {order.sum} {order.attempt} {order.stage}"
        names = {self.nodes[name]: name for name in contents}
        messages = [
            Message(order.message(pairs), self.nodes[name], self.kind, group_id=group)
            for name, pairs in contents.items()
        ]
        taken = set[str]()
        for message in self._answers(messages):
            name = names.get(message.metadata.src_node_id, "")  # of a node that is gone, the SuperLink's own comes
            if not name or name in taken:
                continue
            if message.has_error():
                self._refuse(name, f"its app failed: {message.error.reason or 'no reason given'}")
            elif message.metadata.group_id != group:
                self._refuse(name, f"it answers '{message.metadata.group_id}', not '{group}'")
            else:
                with self.refusing(name):
                    take(name, message.content)
                    taken.add(name)
        for name in contents.keys() - taken:
            self.reasons.setdefault(name, "")

    def _answers(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Each answer once, as they come, so that the server need not hold all of them at the same time.

        It ends when all are there or the time is over; a node that is gone answers with an error.
        """
        waiting = {identity for identity in self.grid.push_messages(messages) if identity}
        deadline, pause = time.monotonic() + self.timeout, SHORTEST
        while waiting and time.monotonic() < deadline:
            found = list(self.grid.pull_messages(waiting))
            waiting -= {message.metadata.reply_to_message_id for message in found}
            if not found:
                time.sleep(pause)
            pause = SHORTEST if found else min(LONGEST, 1.5 * pause)
            while found:
                yield found.pop(0)

    @contextmanager
    def refusing(self, name: str) -> Iterator[None]:
        """Around the use of what came from a client: it is refused if that cannot be used."""
        try:
            with reading():
                yield
        except (UserError, Refused) as error:
            self._refuse(name, str(error))

    def read_each(self, read: Callable[[str], Found]) -> dict[str, Found]:
        """What is read of each client that is there; one of which it cannot be read is refused."""
        found: dict[str, Found] = {}
        for name in self.there:
            with self.refusing(name):
                found[name] = read(name)
        return found

    def _refuse(self, name: str, why: str) -> None:
        self.reasons.setdefault(name, one_line(why, 200))
        log.warning("%s is left out of a secure sum: %s", line(name), line(self.reasons[name]))


@dataclass(frozen=True, eq=False)
class OpenedSum:
    """A sum without its masks, and what belongs to it."""

    words: NDArray[np.uint64]
    survivors: tuple[str, ...]  # who is in it
    announced: Mapping[str, Any]  # by client, what it said in clear


class SecureSums:
    """The sums of one round, one after the other."""

    def __init__(self, circle: Circle, order: Order, directory: Directory | None) -> None:
        self._circle, self._order, self._directory = circle, order, directory

    def open(
        self,
        sum: str,
        asked: Sequence[str],
        keys: Mapping[str, bytes],
        told: Told,
        read: Read = lambda name, text: text,
        settle: Settle | None = None,
        approve: Callable[[Sequence[str]], None] = lambda names: None,
    ) -> OpenedSum:
        """One sum of all who were asked for it; `keys` are those that came with the answers to the first message.

        `approve` raises where these clients must not be summed.
        """
        for attempt in range(ATTEMPTS):
            order = replace(self._order, sum=sum, attempt=attempt)
            if attempt:
                keys = self._fresh_keys(order, asked)
            trial = _Attempt(self._circle, order, asked, self._directory, read)
            try:
                return trial.open(keys, told, settle, approve)
            except SecureSumFailed as failure:
                asked = [name for name in asked if name in self._circle.there]
                if trial.opening or attempt + 1 == ATTEMPTS or len(asked) < FEWEST:
                    raise
                log.warning("%s: it is tried again with fresh keys", failure)
        raise AssertionError("the last attempt returns or raises")

    def _fresh_keys(self, order: Order, asked: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}

        def take(name: str, content: RecordDict) -> None:
            found[name] = pairs_in(content)[order.sum]

        self._circle.ask(replace(order, stage="keys"), {name: {} for name in asked}, take)
        return found


class _Attempt:
    """One sum, one attempt: a message to every client and its answer for each stage."""

    def __init__(
        self, circle: Circle, order: Order, asked: Sequence[str], directory: Directory | None, read: Read
    ) -> None:
        session = Session(order.run, order.round, f"{circle.kind}: {order.sum}", order.attempt, tuple(asked))
        self._circle, self._order, self._collector = circle, order, Collector(session, directory)
        self._announced: dict[str, Any] = {}
        self._read = read
        self.opening = False  # clients were asked for the shares that open the sum

    def open(
        self, keys: Mapping[str, bytes], told: Told, settle: Settle | None, approve: Callable[[Sequence[str]], None]
    ) -> OpenedSum:
        collector = self._collector
        for name, content in keys.items():
            with self._circle.refusing(name):
                collector.take_advertised(name, content)
        advertised = collector.advertised
        sent = [name for name, content in advertised.items() if content]
        self._ask("shares", dict.fromkeys(sent, advertised), self._take_shares, told)
        if settle is not None:
            told = settle({name: self._announced[name] for name in collector.sharers})
        collector.agreed = digest_of_told(told)
        shares = {name: collector.shares_for(name) for name in collector.sharers}
        self._ask("values", shares, self._take_values, told)
        approve(collector.survivors)
        self._ask("survivors", {name: {} for name in collector.survivors}, self._take_signature)
        signatures, self.opening = collector.signatures, True
        self._ask("opening", dict.fromkeys(signatures, signatures), self._take_revealed)
        return OpenedSum(collector.total(), collector.survivors, self._announced)

    def _ask(
        self, stage: str, contents: Mapping[str, Mapping[str, bytes]], take: Take, told: Told | None = None
    ) -> None:
        survivors = self._collector.survivors if stage in ("survivors", "opening") else ()
        order = replace(self._order, stage=stage, told=told or {}, survivors=survivors)
        self._circle.ask(order, contents, take)

    def _take_shares(self, name: str, content: RecordDict) -> None:
        said = self._read(name, str(content.config_records[RECORD]["announced"]))
        self._collector.take_shares(name, pairs_in(content))
        self._announced[name] = said

    def _take_values(self, name: str, content: RecordDict) -> None:
        words = unpack(content.array_records[WORDS][WORDS])
        self._collector.take_masked(name, words, pairs_in(content)["seal"])

    def _take_signature(self, name: str, content: RecordDict) -> None:
        self._collector.take_signature(name, pairs_in(content)["signature"])

    def _take_revealed(self, name: str, content: RecordDict) -> None:
        self._collector.take_revealed(name, pairs_in(content)["shares"])

"""`secure=True`: training and evaluation in which the server sees sums over the clients, and no client's own part.

It passes messages on, adds masked words as they come, and opens the sum. A client that falls silent, fails or is
refused at a stage is left out from then on, and the reason is kept for the ledger. Where too few are left, the sum is
tried again among those that are, with fresh keys; but never after clients were asked to open it, because a second sum
over other clients would show the difference.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from feddraw.core import Heads, Layout, Method, Model, Parts, State
from feddraw.errors import UserError
from feddraw.flower import reply_intake, score_histograms
from feddraw.flower.array_records import Refused, unpack_array
from feddraw.flower.reply_intake import one_line
from feddraw.flower.roster import Roster
from feddraw.flower.secure_messages import (
    ANNOUNCEMENT,
    COUNTS,
    FIRST,
    MOVES,
    ORDER,
    RECEIVED,
    RECORD,
    Order,
    digest_of_told,
    fingerprint_of_sent,
    method_as_text,
    pairs_in,
    reading,
)
from feddraw.flower.secure_site import WORDS
from feddraw.naming import line
from feddraw.secure_rounds.announcement import Announced, Announcement, NotSummed, Party, announce, party_of
from feddraw.secure_rounds.server import check_announced, inform, limit, open_round
from feddraw.secure_sums.server import Collector
from feddraw.secure_sums.session import FEWEST, SecureSumFailed, Session
from feddraw.secure_sums.signing_keys import Directory, read_directory
from feddraw.server.gate import Gate
from feddraw.server.policy import Policy
from feddraw.server.round import RoundResult

log = logging.getLogger("flwr")

Labels = NDArray[np.bool_] | None  # which findings a site labels; None = all


class Table:
    """Who was asked for a secure round, who answered, and how they are called.

    Sites sign under the names that they give themselves; the ledger has those that the server gives them.
    """

    def __init__(
        self, answers: Sequence[reply_intake.Reply], asked: Sequence[int], roster: Roster, grid: Grid, timeout: float
    ) -> None:
        self.answers = {roster.called[answer.name]: answer for answer in answers}
        self.listed = {own: answer.name for own, answer in self.answers.items()}  # their names in the ledger
        self._nodes = {own: answer.node for own, answer in self.answers.items()}
        silent = [roster.label(node) for node in asked if node not in self._nodes.values()]
        self.asked = (*self.answers, *(roster.called.get(name, name) for name in silent))
        self._grid, self._timeout = grid, timeout

    def circle(self, kind: str, group: str) -> Circle:
        return Circle(self._grid, self._nodes, kind, group, self._timeout)

    @property
    def received(self) -> str:
        """The hash of what the sites were sent, as most say; one that was sent anything else takes no part."""
        records = [answer.content.get(RECORD) for answer in self.answers.values()]
        said = [str(one.get(RECEIVED, "")) for one in records if isinstance(one, ConfigRecord)]
        return Counter(said).most_common(1)[0][0] if said else ""

    def labels(self, circle: Circle, findings: int) -> dict[str, Labels]:
        """By site, which findings it labels; None = all."""

        def read(own: str) -> Labels:
            labelled = reply_intake.labelled_in_reply(self.answers[own].content)
            if labelled is not None and len(labelled) != findings:
                raise UserError(f"{len(labelled)} labelled findings where there are {findings}")
            return labelled

        return circle.read_each(read)

    def keys(self, circle: Circle, sum: str) -> dict[str, bytes]:
        """By client, the keys for a sum that came with the first answers."""
        return circle.read_each(lambda own: pairs_in(self.answers[own].content)[sum])


@dataclass
class _Sums:
    """What the sums of a training round gave, as far as they were opened."""

    announcement: Announcement
    state: State
    received: str  # the hash of what all were sent to begin with
    parts: Parts = field(default_factory=dict)
    total: Any = None
    announced: Mapping[str, Announced] = field(default_factory=dict)
    failed: str = ""

    @property
    def told(self) -> Told:
        return {ANNOUNCEMENT: self.announcement.to_json(), RECEIVED: self.received}


@dataclass(frozen=True)
class SecureRounds:
    """What a strategy does where it may see sums only."""

    method: Method
    policy: Policy
    gate: Gate
    directory: Directory | None

    def __post_init__(self) -> None:
        if why := self.method.secure.why_not:
            raise UserError(f"this method cannot run under secure sums: {why} (`feddraw list methods` shows which can)")
        if self.gate.norm == "refuse" or self.gate.clip:
            raise UserError("a secure sum cannot leave out or clip what it hides: gate norm 'off' or 'warn', no clip")
        method_as_text(self.method)  # an error where its rules cannot travel

    @property
    def sums(self) -> tuple[str, ...]:
        return (FIRST, MOVES) if self.method.secure.sums == 2 else (MOVES,)

    # ------------------------------------------------------------------------------------------ training

    def to_train(self, run: str, round: int, arrays_key: str, size_key: str, classifier: Heads) -> dict[str, Any]:
        """The order that goes with a model to train."""
        settings = {"arrays": arrays_key, "size": size_key, "classifier": classifier, "sends": dict(self.method.sends)}
        return {ORDER: asdict(Order(run, round, self.sums, settings=settings))}

    def train(
        self,
        run: str,
        round: int,
        table: Table,
        group: str,
        rounds: int,
        sent: Model,
        state: State,
        clients: Sequence[str],
        size_key: str,
        frozen: str,
    ) -> tuple[RoundResult, dict[str, str]]:
        """A round whose clients have trained and sent their keys and sizes; by client, why some are left out."""
        circle = table.circle("train", group)
        parties = self._parties(table, circle, size_key)
        received = fingerprint_of_sent(sent, self.method.broadcast(state), frozen)
        told = (received, method_as_text(self.method), round, rounds, parties)
        found = _Sums(Announcement(*told), state, table.received)
        try:
            found.announcement = announce(*told, self.policy)
            sums = SecureSums(circle, Order(run, round, self.sums), self.directory)
            self._open(found, sums, table, circle, sent)
        except (SecureSumFailed, UserError) as failure:
            log.error("%s", failure)
            found.failed = reply_intake.one_line(failure, 200)
        refused = {name: why for name, why in circle.reasons.items() if why and name not in found.announced}
        if found.failed:
            refused = dict.fromkeys((party.name for party in parties), found.failed) | refused
        listed = table.listed
        result = open_round(
            self.method,
            _renamed(found.announcement, listed),
            sent,
            found.state,
            found.total,
            {listed[name]: one for name, one in found.announced.items()},
            clients,
            refused={listed[party.name]: refused[party.name] for party in parties if party.name in refused},
            parts=found.parts,
            gate=self.gate,
        )
        return result, {listed[name]: why for name, why in refused.items()}

    def _parties(self, table: Table, circle: Circle, size_key: str) -> tuple[Party, ...]:
        """Those that say how many images they have."""

        def read(own: str) -> Party:
            size, labelled = reply_intake.size_and_labels_in_reply(table.answers[own].content, size_key)
            if size > self.gate.max_size:
                raise UserError(f"{size:,} images, more than gate.max_size = {self.gate.max_size:,}")
            return party_of(own, size, labelled)

        return tuple(circle.read_each(read).values())

    def _open(self, found: _Sums, sums: SecureSums, table: Table, circle: Circle, sent: Model) -> None:
        """All sums of the round, one after the other."""
        keys, asked = {sum: table.keys(circle, sum) for sum in self.sums}, table.asked
        if FIRST in self.sums:
            approve = found.announcement.check_summed
            first = sums.open(FIRST, asked, keys[FIRST], found.told, approve=approve)
            before = (found.announcement, found.state)
            found.announcement, found.parts, found.state = inform(self.method, *before, first.words, first.survivors)
            asked = first.survivors

        def settle(announced: Mapping[str, Announced]) -> Told:
            if self.policy.limits_weights:
                found.announcement = limit(self.method, found.announcement, sent.layout, announced)
            return found.told

        def approve_settled(names: Sequence[str]) -> None:
            found.announcement.check_summed(names)

        read = partial(self._read, found.announcement, sent.layout)
        opened = sums.open(MOVES, asked, keys[MOVES], found.told, read, settle, approve_settled)
        found.total = opened.words
        found.announced = {name: opened.announced[name] for name in opened.survivors}

    def _read(self, announcement: Announcement, layout: Layout, name: str, text: str) -> Announced:
        """What a client says of itself in clear, if its size and the method allow it."""
        found = Announced.of(text)
        check_announced(self.method, announcement, layout, name, found)
        return found

    # ------------------------------------------------------------------------------------------ evaluation

    def to_count(self, run: str, round: int, findings: int) -> dict[str, Any]:
        """What goes with an evaluation whose counts are to be added up under masks."""
        return {ORDER: asdict(Order(run, round, (COUNTS,), settings={"findings": findings}))}

    def count(self, run: str, round: int, table: Table, group: str, findings: int, size_key: str) -> RecordDict | None:
        """All sites' counts together, as one site with all images would have sent them; none if the sum fails."""
        order, circle = Order(run, round, (COUNTS,)), table.circle("evaluate", group)
        approve = partial(_check_counted, table.labels(circle, findings), findings)
        keys, told = table.keys(circle, COUNTS), {RECEIVED: table.received}
        try:
            opened = SecureSums(circle, order, self.directory).open(COUNTS, table.asked, keys, told, approve=approve)
        except (SecureSumFailed, NotSummed) as failure:
            log.error("no evaluation: %s", failure)
            return None
        metrics = score_histograms.histograms_from_words(opened.words, findings)
        metrics[size_key] = sum(_images(table.answers[name].content, size_key) for name in opened.survivors)
        return RecordDict({"metrics": metrics})


def _images(content: RecordDict, size_key: str) -> float:
    """How many images a site says that it evaluated; a site may have none to evaluate."""
    try:
        return reply_intake.size_and_labels_in_reply(content, size_key)[0]
    except Refused:
        return 0


def _check_counted(labels: Mapping[str, Labels], findings: int, names: Sequence[str]) -> None:
    """Refuse counts of a finding that one or two of these sites label: they would be theirs."""
    rows = [labels.get(name) for name in names]
    for finding in range(findings):
        count = sum(row is None or bool(row[finding]) for row in rows)
        if 0 < count < FEWEST:
            raise NotSummed(f"finding {finding} is labelled by {count} site(s) only: a secure sum needs {FEWEST}")


def directory_of(given: Directory | Path | str | None) -> Directory | None:
    """The sites' public keys, also from their file."""
    return read_directory(Path(given)) if isinstance(given, Path | str) else given


def _renamed(announcement: Announcement, names: Mapping[str, str]) -> Announcement:
    """With other names for the clients."""
    parties = tuple(replace(party, name=names[party.name]) for party in announcement.parties)
    proposed, weights = (
        {names[name]: row for name, row in rows.items()} for rows in (announcement.proposed, announcement.weights)
    )
    return replace(announcement, parties=parties, proposed=proposed, weights=weights)


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
        words = unpack_array(content.array_records[WORDS][WORDS])
        self._collector.take_masked(name, words, pairs_in(content)["seal"])

    def _take_signature(self, name: str, content: RecordDict) -> None:
        self._collector.take_signature(name, pairs_in(content)["signature"])

    def _take_revealed(self, name: str, content: RecordDict) -> None:
        self._collector.take_revealed(name, pairs_in(content)["shares"])

"""`secure=True`: training and evaluation in which the server sees sums over the clients, and no
client's own part.

It passes messages on, adds masked words as they come, and opens the sum. A client that falls
silent, fails or is refused at a stage is left out from then on, and the reason is kept for the
ledger. Where too few are left, the sum is tried again among those that are, with fresh keys; but
never after clients were asked to open it, because a second sum over other clients would show the
difference.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from feddraw.core import Heads, Layout, Method, Model, Parts, State
from feddraw.errors import UserError
from feddraw.flower import reply_intake, score_histograms, secure_messages
from feddraw.flower.array_records import Refused, unpack_array
from feddraw.flower.method_as_text import method_as_text
from feddraw.flower.reply_intake import Reply
from feddraw.flower.roster import Roster
from feddraw.flower.secure_messages import (
    COUNTS_SUM,
    SECURE_ORDER,
    SECURE_RECORD,
    SecureOrder,
    secure_pairs_in,
)
from feddraw.secure.rounds.announcement import (
    FIRST_SUM,
    MOVES_SUM,
    AnnouncedParty,
    Announcement,
    ClientAnnouncement,
    TooFewSummed,
    announce_secure_round,
    announced_party,
)
from feddraw.secure.rounds.round_weights import announce_weights_under_policy
from feddraw.secure.rounds.server import (
    check_client_announcement,
    inform_of_first_sum,
    secure_round_result,
)
from feddraw.secure.sums.server import SecureSumServer
from feddraw.secure.sums.session import FEWEST_SUMMED, SecureSumFailed, Session
from feddraw.secure.sums.signing_keys import SiteDirectory
from feddraw.server.gate import Gate
from feddraw.server.policy import Policy
from feddraw.server.round import RoundResult
from feddraw.text import one_line, safe_line

log = logging.getLogger("flwr")

Labels = NDArray[np.bool_] | None  # which findings a site labels; None = all


class SecureServerAnswers:
    """Who was asked for a secure round, who answered, and how they are called.

    Sites sign under the names that they give themselves; the ledger has those that the server gives
    them.
    """

    def __init__(
        self, replies: Sequence[Reply], asked: list[int], roster: Roster, grid: Grid, timeout: float
    ) -> None:
        self.by_name = {roster.called[reply.name]: reply for reply in replies}
        self.listed = {
            own: reply.name for own, reply in self.by_name.items()
        }  # their names in the ledger
        self._nodes = {own: reply.node for own, reply in self.by_name.items()}
        silent = [roster.label(node) for node in asked if node not in self._nodes.values()]
        self.asked = (*self.by_name, *(roster.called.get(name, name) for name in silent))
        self._grid, self._timeout = grid, timeout

    def messenger(self, kind: str, group: str) -> SecureServerMessenger:
        return SecureServerMessenger(self._grid, self._nodes, kind, group, self._timeout)

    @property
    def received(self) -> str:
        """The hash of what the sites were sent, as most say; one that was sent anything else takes
        no part.
        """
        records = [reply.content.get(SECURE_RECORD) for reply in self.by_name.values()]
        said = [
            str(one.get(secure_messages.RECEIVED, ""))
            for one in records
            if isinstance(one, ConfigRecord)
        ]
        return Counter(said).most_common(1)[0][0] if said else ""

    def labels(self, messenger: SecureServerMessenger, findings: int) -> dict[str, Labels]:
        """By site, which findings it labels; None = all."""

        def read(own: str) -> Labels:
            labelled = reply_intake.labelled_in_reply(self.by_name[own].content)
            if labelled is not None and len(labelled) != findings:
                raise UserError(f"{len(labelled)} labelled findings where there are {findings}")
            return labelled

        return messenger.read_each(read)

    def keys(self, messenger: SecureServerMessenger, sum: str) -> dict[str, bytes]:
        """By client, the keys for a sum that came with the first answers."""
        return messenger.read_each(lambda own: secure_pairs_in(self.by_name[own].content)[sum])


@dataclass
class _SecureProgress:
    """What the sums of a training round gave, as far as they were opened."""

    announcement: Announcement
    state: State
    received: str  # the hash of what all were sent to begin with
    parts: Parts = field(default_factory=dict)
    total: Any = None
    announced: Mapping[str, ClientAnnouncement] = field(default_factory=dict)
    failed: str = ""

    @property
    def told(self) -> Told:
        return {
            secure_messages.ANNOUNCEMENT: self.announcement.to_json(),
            secure_messages.RECEIVED: self.received,
        }


@dataclass(frozen=True)
class FlowerSecureServer:
    """What a strategy does where it may see sums only."""

    method: Method
    policy: Policy
    gate: Gate
    directory: SiteDirectory | None
    size_key: str
    arrays_key: str

    def __post_init__(self) -> None:
        if why := self.method.secure.why_not:
            raise UserError(
                f"this method cannot run under secure sums: {why} (`feddraw list methods` shows"
                " which can)"
            )
        if self.gate.norm == "refuse" or self.gate.clip:
            raise UserError(
                "a secure sum cannot leave out or clip single updates: use norm 'off' or 'warn',"
                " clip 0"
            )
        method_as_text(self.method)  # an error where its rules cannot travel

    @property
    def sums(self) -> tuple[str, ...]:
        return (FIRST_SUM, MOVES_SUM) if self.method.secure.sums == 2 else (MOVES_SUM,)

    def to_train(self, run: str, round: int, classifier: Heads) -> dict[str, Any]:
        """The order that goes with a model to train."""
        settings: dict[str, Any] = {
            "arrays": self.arrays_key,
            "size": self.size_key,
            "classifier": classifier,
        }
        settings |= {"sends": dict(self.method.sends)}
        return {SECURE_ORDER: asdict(SecureOrder(run, round, self.sums, settings=settings))}

    def train(
        self,
        run: str,
        round: int,
        answers: SecureServerAnswers,
        group: str,
        rounds: int,
        sent: Model,
        state: State,
        clients: Sequence[str],
        frozen: str,
    ) -> tuple[RoundResult, dict[str, str]]:
        """A round whose clients have trained and sent their keys and sizes; by client, why some are
        left out.
        """
        messenger = answers.messenger("train", group)
        parties = self._parties(answers, messenger, sent.layout.outputs)
        received = secure_messages.fingerprint_of_sent(sent, self.method.broadcast(state), frozen)
        told = (received, method_as_text(self.method), round, rounds, parties)
        found = _SecureProgress(Announcement(*told), state, answers.received)
        try:
            found.announcement = announce_secure_round(*told, self.policy)
            sums = SecureServerSums(messenger, SecureOrder(run, round, self.sums), self.directory)
            self._open(found, sums, answers, sent)
        except (SecureSumFailed, UserError) as failure:
            log.error("%s", failure)
            found.failed = one_line(failure, 200)
        refused = {
            name: why
            for name, why in messenger.reasons.items()
            if why and name not in found.announced
        }
        if found.failed:
            refused = dict.fromkeys((party.name for party in parties), found.failed) | refused
        listed = answers.listed
        renamed = _announcement_with_ledger_names(found.announcement, listed)
        announced = {listed[name]: one for name, one in found.announced.items()}
        left_out = {
            listed[party.name]: refused[party.name] for party in parties if party.name in refused
        }
        given = (self.method, renamed, sent, found.state, found.total, announced, clients)
        result = secure_round_result(*given, refused=left_out, parts=found.parts, gate=self.gate)
        return result, {listed[name]: why for name, why in refused.items()}

    def _parties(
        self, answers: SecureServerAnswers, messenger: SecureServerMessenger, outputs: int
    ) -> tuple[AnnouncedParty, ...]:
        """Those that say how many images they have and, where these are not all, which findings
        they label.
        """

        def read(own: str) -> AnnouncedParty:
            size, labelled = reply_intake.size_and_labels_in_reply(
                answers.by_name[own].content, self.size_key
            )
            if size > self.gate.max_size:
                raise UserError(
                    f"{size:,} images, more than gate.max_size = {self.gate.max_size:,}"
                )
            if labelled is not None and len(labelled) != outputs:
                raise UserError(f"{len(labelled)} labelled findings where the model has {outputs}")
            return announced_party(own, size, labelled)

        return tuple(messenger.read_each(read).values())

    def _open(
        self,
        found: _SecureProgress,
        sums: SecureServerSums,
        answers: SecureServerAnswers,
        sent: Model,
    ) -> None:
        keys, asked = {sum: answers.keys(sums.messenger, sum) for sum in self.sums}, answers.asked
        if FIRST_SUM in self.sums:
            approve = found.announcement.check_summed
            first = sums.open(FIRST_SUM, asked, keys[FIRST_SUM], found.told, approve=approve)
            given = (self.method, found.announcement, found.state, first.words, first.survivors)
            found.announcement, found.parts, found.state = inform_of_first_sum(*given)
            asked = first.survivors

        def settle(announced: Mapping[str, ClientAnnouncement]) -> Told:
            if self.policy.limits_weights:
                given = (self.method, found.announcement, sent.layout, announced)
                found.announcement = announce_weights_under_policy(*given)
            return found.told

        def approve_settled(names: Sequence[str]) -> None:
            found.announcement.check_summed(names)

        read = partial(self._read, found.announcement, sent.layout)
        opened = sums.open(
            MOVES_SUM, asked, keys[MOVES_SUM], found.told, read, settle, approve_settled
        )
        found.total = opened.words
        found.announced = {name: opened.announced[name] for name in opened.survivors}

    def _read(
        self, announcement: Announcement, layout: Layout, name: str, text: str
    ) -> ClientAnnouncement:
        """What a client says of itself in clear, if its size and the method allow it."""
        found = ClientAnnouncement.of(text)
        check_client_announcement(self.method, announcement, layout, name, found)
        return found

    def to_count(self, run: str, round: int, findings: int) -> dict[str, Any]:
        """What goes with an evaluation whose counts are to be added up under masks."""
        return {
            SECURE_ORDER: asdict(
                SecureOrder(run, round, (COUNTS_SUM,), settings={"findings": findings})
            )
        }

    def count(
        self, run: str, round: int, answers: SecureServerAnswers, group: str, findings: int
    ) -> RecordDict | None:
        """All sites' counts together, as one site with all images would have sent them; none if the
        sum fails.
        """
        order, messenger = (
            SecureOrder(run, round, (COUNTS_SUM,)),
            answers.messenger("evaluate", group),
        )
        approve = partial(
            _check_secure_server_counts, answers.labels(messenger, findings), findings
        )
        keys, told = (
            answers.keys(messenger, COUNTS_SUM),
            {secure_messages.RECEIVED: answers.received},
        )
        try:
            sums = SecureServerSums(messenger, order, self.directory)
            opened = sums.open(COUNTS_SUM, answers.asked, keys, told, approve=approve)
        except (SecureSumFailed, TooFewSummed) as failure:
            log.error("no evaluation: %s", failure)
            return None
        metrics = score_histograms.histograms_from_words(opened.words, findings)
        summed = [answers.by_name[name].content for name in opened.survivors]
        metrics[self.size_key] = sum(
            _images_at_secure_site(content, self.size_key) for content in summed
        )
        return RecordDict({"metrics": metrics})


def _images_at_secure_site(content: RecordDict, size_key: str) -> float:
    """How many images a site says that it evaluated; a site may have none to evaluate."""
    try:
        return reply_intake.size_and_labels_in_reply(content, size_key)[0]
    except Refused:
        return 0


def _check_secure_server_counts(
    labels: Mapping[str, Labels], findings: int, names: Sequence[str]
) -> None:
    """Refuse counts of a finding that one or two of these sites label: they would be theirs."""
    rows = [labels.get(name) for name in names]
    for place in range(findings):
        few = sum(row is None or bool(row[place]) for row in rows)
        if 0 < few < FEWEST_SUMMED:
            raise TooFewSummed(
                f"finding {place} is labelled by {few} site(s) only: a secure sum needs"
                f" {FEWEST_SUMMED}"
            )


def _announcement_with_ledger_names(
    announcement: Announcement, names: Mapping[str, str]
) -> Announcement:
    """The announcement with the names that the ledger has for the clients."""
    parties = tuple(replace(party, name=names[party.name]) for party in announcement.parties)
    tables = (announcement.proposed, announcement.weights)
    proposed, weights = ({names[name]: row for name, row in table.items()} for table in tables)
    return replace(announcement, parties=parties, proposed=proposed, weights=weights)


ATTEMPTS = 3  # of one sum, in all
SHORTEST_PAUSE, LONGEST_PAUSE = (
    0.1,
    2.0,
)  # seconds between two looks for answers, growing while none comes

Found = TypeVar("Found")
Told = Mapping[str, str]  # to all clients, the same
Take = Callable[[str, RecordDict], None]
Read = Callable[
    [str, str], Any
]  # what a client says in clear about what it adds, by its name and text
Settle = Callable[[dict[str, Any]], Told]  # what all clients are told once all have said it
Approve = Callable[[Sequence[str]], None]  # raises where these clients must not be summed


@dataclass
class SecureServerMessenger:
    """The clients of one round by the names that they give themselves, and how they are reached."""

    grid: Grid
    nodes: Mapping[str, int]  # of those that answered the first message
    kind: str  # of messages: train or evaluate
    group: str
    timeout: float
    reasons: dict[str, str] = field(
        default_factory=dict
    )  # why clients are left out; empty: they fell silent

    @property
    def there(self) -> list[str]:
        return [name for name in self.nodes if name not in self.reasons]

    def ask(
        self, order: SecureOrder, contents: Mapping[str, Mapping[str, bytes]], take: Take
    ) -> None:
        """Ask, and take answers as they come; one that cannot be taken is refused by name."""
        group = f"{self.group} {order.sum} {order.attempt} {order.stage}"
        names = {self.nodes[name]: name for name in contents}
        messages = [
            Message(order.message(pairs), self.nodes[name], self.kind, group_id=group)
            for name, pairs in contents.items()
        ]
        taken = set[str]()
        for message in self._answers(messages):
            name = names.get(
                message.metadata.src_node_id, ""
            )  # of a node that is gone, the SuperLink's own comes
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
        """Each answer once, as they come, so that the server need not hold all of them at the same
        time.

        It ends when all are there or the time is over; a node that is gone answers with an error.
        """
        waiting = {identity for identity in self.grid.push_messages(messages) if identity}
        deadline, pause = time.monotonic() + self.timeout, SHORTEST_PAUSE
        while waiting and time.monotonic() < deadline:
            found = list(self.grid.pull_messages(waiting))
            waiting -= {message.metadata.reply_to_message_id for message in found}
            if not found:
                time.sleep(pause)
            pause = SHORTEST_PAUSE if found else min(LONGEST_PAUSE, 1.5 * pause)
            while found:
                yield found.pop(0)

    @contextmanager
    def refusing(self, name: str) -> Iterator[None]:
        """Around the use of what came from a client: it is refused if that cannot be used."""
        try:
            with secure_messages.reading_secure_message():
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
        log.warning(
            "%s is left out of a secure sum: %s", safe_line(name), safe_line(self.reasons[name])
        )


@dataclass(frozen=True, eq=False)
class SecureServerOpened:
    """A sum without its masks, and what belongs to it."""

    words: NDArray[np.uint64]
    survivors: tuple[str, ...]  # who is in it
    announced: Mapping[str, Any]  # by client, what it said in clear


class SecureServerSums:
    """The sums of one round, one after the other."""

    def __init__(
        self, messenger: SecureServerMessenger, order: SecureOrder, directory: SiteDirectory | None
    ) -> None:
        self.messenger, self._order, self.directory = messenger, order, directory

    def open(
        self,
        sum: str,
        asked: Sequence[str],
        keys: Mapping[str, bytes],
        told: Told,
        read: Read = lambda name, text: text,
        settle: Settle | None = None,
        approve: Approve = lambda names: None,
    ) -> SecureServerOpened:
        """One sum of all who were asked for it; `keys` are those that came with the answers to the
        first message.
        """
        for attempt in range(ATTEMPTS):
            order = replace(self._order, sum=sum, attempt=attempt)
            if attempt:
                keys = self._fresh_keys(order, asked)
            trial = _SecureServerAttempt(self, order, asked, read)
            try:
                return trial.open(keys, told, settle, approve)
            except SecureSumFailed as failure:
                asked = [name for name in asked if name in self.messenger.there]
                if trial.opening or attempt + 1 == ATTEMPTS or len(asked) < FEWEST_SUMMED:
                    raise
                log.warning("%s: it is tried again with fresh keys", failure)
        raise AssertionError("the last attempt returns or raises")

    def _fresh_keys(self, order: SecureOrder, asked: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}

        def take(name: str, content: RecordDict) -> None:
            found[name] = secure_pairs_in(content)[order.sum]

        self.messenger.ask(replace(order, stage="keys"), {name: {} for name in asked}, take)
        return found


class _SecureServerAttempt:
    """One sum, one attempt: a message to every client and its answer for each stage."""

    def __init__(
        self, sums: SecureServerSums, order: SecureOrder, asked: Sequence[str], read: Read
    ) -> None:
        self._messenger, self._order, self._read = sums.messenger, order, read
        purpose = f"{self._messenger.kind}: {order.sum}"
        session = Session(order.run, order.round, purpose, order.attempt, tuple(asked))
        self._sum_server = SecureSumServer(session, sums.directory)
        self._announced: dict[str, Any] = {}
        self.opening = False  # clients were asked for the shares that open the sum

    def open(
        self, keys: Mapping[str, bytes], told: Told, settle: Settle | None, approve: Approve
    ) -> SecureServerOpened:
        sum_server = self._sum_server
        for name, content in keys.items():
            with self._messenger.refusing(name):
                sum_server.take_advertised(name, content)
        advertised = sum_server.advertised
        sent = [name for name, content in advertised.items() if content]
        self._ask("shares", dict.fromkeys(sent, advertised), self._take_shares, told)
        if settle is not None:
            told = settle({name: self._announced[name] for name in sum_server.sharers})
        sum_server.agreed = secure_messages.digest_of_told(told)
        shares = {name: sum_server.shares_for(name) for name in sum_server.sharers}
        self._ask("values", shares, self._take_values, told)
        approve(sum_server.survivors)
        self._ask("survivors", {name: {} for name in sum_server.survivors}, self._take_signature)
        signatures, self.opening = sum_server.signatures, True
        self._ask("opening", dict.fromkeys(signatures, signatures), self._take_revealed)
        return SecureServerOpened(sum_server.total(), sum_server.survivors, self._announced)

    def _ask(
        self,
        stage: str,
        pairs: Mapping[str, Mapping[str, bytes]],
        take: Take,
        told: Told | None = None,
    ) -> None:
        survivors = self._sum_server.survivors if stage in ("survivors", "opening") else ()
        order = replace(self._order, stage=stage, told=told or {}, survivors=survivors)
        self._messenger.ask(order, pairs, take)

    def _take_shares(self, name: str, content: RecordDict) -> None:
        said = self._read(name, str(content.config_records[SECURE_RECORD]["announced"]))
        self._sum_server.take_shares(name, secure_pairs_in(content))
        self._announced[name] = said

    def _take_values(self, name: str, content: RecordDict) -> None:
        words = unpack_array(
            content.array_records[secure_messages.MASKED_WORDS][secure_messages.MASKED_WORDS]
        )
        self._sum_server.take_masked(name, words, secure_pairs_in(content)["seal"])

    def _take_signature(self, name: str, content: RecordDict) -> None:
        self._sum_server.take_signature(name, secure_pairs_in(content)["signature"])

    def _take_revealed(self, name: str, content: RecordDict) -> None:
        self._sum_server.take_revealed(name, secure_pairs_in(content)["shares"])

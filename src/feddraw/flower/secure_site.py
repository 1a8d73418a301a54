"""What a site does for one secure round: it keeps its part, agrees on masks with the others, and
opens the sum.

    begin      the app has trained (or evaluated): what it gave is kept; fresh keys leave, with
    numbers in clear
    keys       fresh keys leave again, where a sum is tried again
    shares     everyone's keys come, and what was announced; shares for the others leave, and how
    much this site counts
    values     the others' shares come; the masked words leave
    survivors  who is in the sum comes; a signature leaves
    opening    the others' signatures come; the shares that open the sum leave, and what was kept is
    deleted

The state is on the disk before an answer leaves (`secure_site_memory`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from feddraw.core import Model, Update
from feddraw.errors import UserError
from feddraw.flower import (
    job_orders,
    reply_intake,
    score_histograms,
    secure_messages,
    secure_site_memory,
)
from feddraw.flower.array_records import arrays_to_model, arrays_to_vectors, pack_array
from feddraw.flower.client_memory import memory_folder
from feddraw.flower.frozen_layers import FROZEN
from feddraw.flower.method_as_text import method_from_text
from feddraw.flower.secure_messages import (
    ANNOUNCEMENT,
    COUNTS_SUM,
    SecureOrder,
    reading_secure_message,
    secure_answer,
)
from feddraw.flower.secure_site_memory import (
    SecureSiteMemory,
    SecureSiteOpenedRound,
    SecureSiteState,
)
from feddraw.secure.rounds.announcement import FIRST_SUM, MOVES_SUM, Announcement
from feddraw.secure.rounds.client import SecureRoundClient
from feddraw.secure.sums.client import SecureSumClient
from feddraw.secure.sums.session import FEWEST_SUMMED, SessionId
from feddraw.secure.sums.signing_keys import read_site_directory, read_site_key, site_of_key
from feddraw.server.state_dict import layout_of_arrays
from feddraw.text import one_line

LEAVING_METRICS = (
    "num-examples",
    "partition-id",
    reply_intake.SECONDS,
    *reply_intake.LOSSES,
    *reply_intake.STEPS,
)
NO_KEY = (
    "the server asks for secure sums, and this node has no signing key: make one with `feddraw site"
    " key FILE`, and name it with key=… in the --node-config"
)
SUMS_OF_SITE = {
    "train": (FIRST_SUM, MOVES_SUM),
    "evaluate": (COUNTS_SUM,),
}  # those that a site takes part in


class SecureSiteNode:
    """A node with its key and the keys of all sites, and what of its app's answers may leave it in
    clear.
    """

    def __init__(self, context: Context, received: RecordDict) -> None:
        node = context.node_config
        if not node.get("key"):
            raise UserError(NO_KEY)
        self.key = read_site_key(Path(str(node["key"])))
        self.directory = (
            read_site_directory(Path(str(node["sites"]))) if node.get("sites") else None
        )
        self.fewest = int(node.get("fewest", FEWEST_SUMMED))  # clients that must be in a sum
        self._frozen = str(
            job_orders.read_orders(received).get(FROZEN, "")
        )  # digest of frozen layers
        self._context = context
        self.listed = {
            *LEAVING_METRICS,
            *(name.strip() for name in str(node.get("metrics", "")).split(",")),
        }

    def name(self, content: RecordDict) -> str:
        """What this site is called in sums: by the directory, else by its app, its settings, or its
        number.
        """
        about = content.get("client")
        own = (
            about.get("name")
            if isinstance(about, ConfigRecord)
            else self._context.node_config.get("client")
        )
        if self.directory is None:
            return (
                one_line(own)
                if own
                else reply_intake.named_reply(self._context.node_id, content).name
            )
        name = site_of_key(self.directory, self.key.public_key())
        if own and one_line(own) not in (name, f"node {self._context.node_id}"):
            raise UserError(
                f"this site calls itself {one_line(own)}, but its key is that of {name}"
            )
        return name

    def in_clear(self, content: RecordDict) -> RecordDict:
        """What may leave of an app's answer: who it is, and single numbers under listed names.

        Never a tensor.
        """
        who, about = (
            ConfigRecord({"name": self.name(content)}),
            reply_intake.client_in_reply(content),
        )
        number, labelled = about.get("number"), about.get("labelled")
        if isinstance(number, int):
            who["number"] = number
        if isinstance(labelled, list) and all(isinstance(one, bool) for one in labelled):
            who["labelled"] = labelled
        if about.get(FROZEN) == self._frozen:
            who[FROZEN] = self._frozen
        metrics = MetricRecord()
        for record in reply_intake.records_of_kind(content, MetricRecord).values():
            for name, value in record.items():
                if name in self.listed and name not in metrics and isinstance(value, int | float):
                    metrics[name] = value if math.isfinite(value) else math.nan
        return RecordDict({"client": who, "metrics": metrics})


class SecureSiteRound:
    """A site's part in one round of one run; every call answers one message."""

    def __init__(
        self, node: SecureSiteNode, memory: SecureSiteMemory, kind: str, order: SecureOrder
    ) -> None:
        self._node, self._memory, self._kind, self._order = node, memory, kind, order
        self._received = ""  # the fingerprint of what came to train on
        if not set(order.sums) <= set(SUMS_OF_SITE.get(kind, ())):
            raise UserError(f"there are no such sums of '{one_line(kind)}': {one_line(order.sums)}")
        self._state = self._kept()

    def _kept(self) -> SecureSiteState:
        """What is known of the round, if it is the one that the server asks for."""
        state, round = self._memory.state(), self._order.round
        if round < state.opened.round:
            raise UserError(
                f"round {round} is over at this site, which has opened round {state.opened.round}"
            )
        if self._order.stage != "begin" and round != state.round:
            raise UserError(
                f"this site is at round {state.round}, and the server asks for round {round}"
            )
        return state

    # ----------------------------------------------------------------------------- the app's answer

    def sent_model(self, content: RecordDict) -> Model | None:
        """The model that came, from which the move is measured; none where nothing is trained."""
        if self._kind != "train":
            return None
        with reading_secure_message():
            arrays, named = (
                content.array_records[self._order.settings["arrays"]],
                self._order.settings["classifier"],
            )
            sent = arrays_to_model(
                arrays, layout_of_arrays(arrays, secure_site_memory.classifier_from_json(named))
            )
            broadcast = content.array_records.get("broadcast", ArrayRecord())
            frozen = str(job_orders.read_orders(content).get("frozen", ""))
            self._received = secure_messages.fingerprint_of_sent(
                sent, arrays_to_vectors(broadcast), frozen
            )
            return sent

    def begin(self, sent: Model | None, received: str, content: RecordDict) -> RecordDict:
        """Keep what the app gave. Keys for every sum of the round leave, and what may leave in
        clear.

        `received` is the hash of the message that the app was called with.
        """
        opened = self._kept().opened  # as it is now: the app may have worked for hours
        found = self._node.in_clear(content)
        vectors, about = self._counts(content) if sent is None else self._update(sent, content)
        about["received"] = self._received
        name = str(found.config_records["client"]["name"])
        self._state = SecureSiteState(self._order.round, name, received, opened=opened)
        keys = {sum: self._keys(sum, 0) for sum in self._order.sums}
        self._memory.keep(vectors, about)
        self._memory.keep_state(self._state)
        return RecordDict(dict(found) | dict(secure_answer(keys, received=received)))

    def _update(
        self, sent: Model, content: RecordDict
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """The app's answer as a server would read it, with listed metrics only, in the form that is
        kept.
        """
        with reading_secure_message():
            size, arrays = str(self._order.settings["size"]), str(self._order.settings["arrays"])
            format = reply_intake.ReplyFormat(dict(self._order.settings["sends"]), size, arrays)
        if size not in self._node.listed:
            raise UserError(
                f"the server weighs by {one_line(size)}: list it in this node's metrics=…"
            )
        reply = reply_intake.named_reply(0, content)
        found, refused, _ = reply_intake.decode_replies([reply], {reply.name: 0}, sent, format)
        if refused:
            raise UserError(f"this site's own update cannot be used: {refused[reply.name]}")
        update = found[0]
        listed = {
            name: value
            for name, value in update.metrics.items()
            if name == "loss" or name in self._node.listed
        }
        update = replace(update, metrics=listed, steps=_steps_at_secure_site(update, sent))
        return secure_site_memory.update_to_site_memory(sent, update)

    def _counts(self, content: RecordDict) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        with reading_secure_message():
            findings = int(self._order.settings["findings"])
        return {COUNTS_SUM: score_histograms.histograms_to_words(content, findings)}, {}

    # ----------------------------------------------------------------------------- the later stages

    def answer(self, content: RecordDict) -> RecordDict:
        """To a message of a stage after the first."""
        stage, sum, attempt = self._order.stage, self._order.sum, self._order.attempt
        pairs = secure_messages.secure_pairs_in(content, secure_messages.CONFIG)
        if stage == "keys":
            return self._again()
        if attempt != self._state.attempts.get(sum):
            raise UserError(
                f"this site is at attempt {self._state.attempts.get(sum)} of '{sum}', not at"
                f" {attempt}"
            )
        if (
            stage in ("shares", "values")
            and self._order.told.get(secure_messages.RECEIVED) != self._state.received
        ):
            raise UserError(
                "this site was sent other settings or another model than the server says that all"
                " were"
            )
        sum_client = SecureSumClient.from_bytes(
            self._state.members[sum].encode(), self._node.key, self._node.directory
        )
        steps = {
            "shares": self._share,
            "values": self._mask,
            "survivors": self._sign,
            "opening": self._reveal,
        }
        found = steps[stage](sum_client, pairs)
        self._state.members[sum] = sum_client.to_bytes().decode()
        self._memory.keep_state(self._state)
        if stage == "opening" and sum != FIRST_SUM:
            self._memory.forget()
        return found

    def _keys(self, sum: str, attempt: int) -> bytes:
        about = SessionId(self._order.run, self._order.round, f"{self._kind}: {sum}", attempt)
        node = self._node
        sum_client = SecureSumClient(
            about, self._state.name, node.key, node.directory, least=node.fewest
        )
        content = sum_client.advertise()
        self._state.members[sum], self._state.attempts[sum] = (
            sum_client.to_bytes().decode(),
            attempt,
        )
        return content

    def _again(self) -> RecordDict:
        """Fresh keys for another attempt; what this site adds stays what it kept."""
        sum, attempt = self._order.sum, self._order.attempt
        self._memory.waiting()  # an error where it is gone
        if attempt <= self._state.attempts.get(sum, -1):
            raise UserError(f"attempt {attempt} of '{sum}' was made before")
        keys = {sum: self._keys(sum, attempt)}
        self._memory.keep_state(self._state)
        return secure_answer(keys)

    def _share(self, sum_client: SecureSumClient, advertised: dict[str, bytes]) -> RecordDict:
        shares = sum_client.share(advertised)
        self._state.told[self._order.sum] = dict(self._order.told)
        said = (
            self._round_client().weigh(self._announcement).to_json()
            if self._order.sum == MOVES_SUM
            else ""
        )
        return secure_answer(shares, announced=said)

    def _mask(self, sum_client: SecureSumClient, shares: dict[str, bytes]) -> RecordDict:
        agreed = secure_messages.digest_of_told(self._order.told)
        masked = sum_client.mask(shares, self._words(), in_place=True, agreed=agreed)
        self._state.agreed[self._order.sum] = agreed.hex()
        self._state.told[self._order.sum] = dict(
            self._order.told
        )  # now with the weights, where a policy limits them
        found = secure_answer({"seal": sum_client.seal(masked)})
        found[secure_messages.MASKED_WORDS] = ArrayRecord(
            {secure_messages.MASKED_WORDS: pack_array(masked)}
        )
        return found

    def _sign(self, sum_client: SecureSumClient, _: dict[str, bytes]) -> RecordDict:
        opened, this = self._state.opened, self._opening()
        if opened.round == self._order.round and this != opened.sums.get(self._order.sum, this):
            why = f"this site has opened round {opened.round} before, with other clients or weights"
            raise UserError(f"{why}: a second sum would show what one of them sent")
        if self._kind == "train":
            Announcement.of(self._state.told[self._order.sum][ANNOUNCEMENT]).check_summed(
                self._order.survivors
            )
        return secure_answer({"signature": sum_client.sign(self._order.survivors)})

    def _reveal(self, sum_client: SecureSumClient, signatures: dict[str, bytes]) -> RecordDict:
        content = sum_client.reveal(self._order.survivors, signatures)
        if self._state.opened.round != self._order.round:
            self._state.opened = SecureSiteOpenedRound(self._order.round)
        self._state.opened.sums[self._order.sum] = self._opening()
        return secure_answer({"shares": content})

    def _opening(self) -> list[str]:
        """What is opened: what was told about it, and who is in it."""
        return [self._state.agreed.get(self._order.sum, ""), *sorted(self._order.survivors)]

    # -------------------------------------------------------------------------------- what is added

    def _words(self) -> NDArray[np.uint64]:
        if self._kind != "train":
            return self._memory.waiting()[0][COUNTS_SUM]
        before = Announcement.of(self._state.told[self._order.sum][ANNOUNCEMENT])
        if replace(self._announcement, proposed={}, weights={}) != before:
            raise UserError(
                "the server's description of this sum has changed since this site agreed to it"
            )
        client = self._round_client()
        return (client.first if self._order.sum == FIRST_SUM else client.words)(self._announcement)

    @cached_property
    def _announcement(self) -> Announcement:
        with reading_secure_message():
            return Announcement.of(self._order.told[ANNOUNCEMENT])

    def _round_client(self) -> SecureRoundClient:
        vectors, about = self._memory.waiting()
        sent, update = secure_site_memory.update_from_site_memory(vectors, about)
        given = (
            method_from_text(self._announcement.method),
            self._announcement,
            self._state.name,
            sent,
            update,
        )
        return SecureRoundClient(*given, listed=tuple(update.metrics), received=about["received"])


def _steps_at_secure_site(update: Update, sent: Model) -> int:
    """As the app says, else by batch norm's counters: the server's follow from the steps that are
    announced.
    """
    if any(key in update.metrics for key in reply_intake.STEPS) or not len(sent.counters):
        return update.steps
    return max(update.steps, int((update.model.counters - sent.counters).max()))


App = Callable[[Message, Context], Message]

NOT_SECURE = (
    "this site takes part in secure sums only, and the server asks for its model: it needs"
    " secure=true"
)


def secure_mod(message: Message, context: Context, app: App) -> Message:
    """For `ClientApp(mods=[secure_mod])`, around any app: nothing that leaves this site is its
    model.

    The app trains and answers as ever, but its answer stops here: the update waits in the site's
    own memory while the sites agree on masks, and only masked words leave, with a few numbers in
    clear. A message that asks for more gets an error. Put this mod first, so that no other one
    stands between it and the server.
    """
    node, order = (
        SecureSiteNode(context, message.content),
        secure_messages.secure_order_in(message.content),
    )
    kind = message.metadata.message_type.partition(".")[0]
    if order is None and kind == "train":
        raise UserError(NOT_SECURE)
    if order is None:
        reply = app(message, context)
        return (
            reply if reply.has_error() else Message(node.in_clear(reply.content), reply_to=message)
        )
    memory = SecureSiteMemory(
        memory_folder(context.node_config), order.run, node.key.public_key(), kind
    )
    if order.stage != "begin":
        with memory.held():
            return Message(
                SecureSiteRound(node, memory, kind, order).answer(message.content), reply_to=message
            )
    part = SecureSiteRound(node, memory, kind, order)
    sent = part.sent_model(
        message.content
    )  # before the app is called, which may write into what it gets
    received = secure_messages.hash_of_secure_message(message.content, context.run_config)
    reply = app(message, context)
    if reply.has_error():
        return reply
    with memory.held():
        return Message(part.begin(sent, received, reply.content), reply_to=message)


def secure_where_keyed(message: Message, context: Context, app: App) -> Message:
    """The ready app's: `secure_mod` at nodes that have a key.

    Others train for a server that sees their models.
    """
    if context.node_config.get("key"):
        return secure_mod(message, context, app)
    if secure_messages.secure_order_in(message.content) is not None:
        raise UserError(NO_KEY)
    return app(message, context)

"""`secure_mod`: a Flower app behind the site's side of secure rounds (`secure.rounds.site`).

The app trains and evaluates as ever, but only on what enough sites have agreed on, and its answer
stops here: it waits in the site's own memory while the sites agree on masks, and only masked words
leave, with the site's name, size, steps, labelled findings and own weight.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, Metadata, MetricRecord, RecordDict
from numpy.typing import NDArray

from feddraw.core import Layout, Model, Update
from feddraw.errors import UserError
from feddraw.flower import job_orders, reply_intake, score_histograms, secure_messages
from feddraw.flower.array_records import arrays_to_model
from feddraw.flower.client_memory import memory_folder
from feddraw.flower.frozen_layers import FROZEN, QUESTION
from feddraw.flower.reply_intake import ReplyFormat
from feddraw.flower.secure_messages import (
    FlowerRun,
    reading_secure_message,
)
from feddraw.flower.secure_node import NO_KEY, SecureNode, method_of_terms
from feddraw.flower.secure_site_memory import (
    SHARED,
    SecureSiteMemory,
    update_of_memory,
    update_to_memory,
)
from feddraw.secure.rounds.counts_part import CountsPart
from feddraw.secure.rounds.site import Offer, Part, SecureSite, SiteFacts, SiteRound
from feddraw.secure.rounds.terms import EVALUATE, TRAIN, Announcement, Terms
from feddraw.secure.rounds.update_part import UpdatePart
from feddraw.server.gate import NO_STEPS
from feddraw.server.state_dict import layout_of_arrays
from feddraw.text import one_line
from feddraw.training.own_frozen_layers import OtherFrozenLayers

log = logging.getLogger("flwr")

App = Callable[[Message, Context], Message]

NOT_SECURE = (
    "this site takes part in secure sums only, and the server asks for its model: it needs"
    " secure=true"
)
APP_FAILED = "its app failed, and its own log says why"
A_DIGEST = re.compile("[0-9a-f]{64}")
LONGEST_TRAINING = 30 * 24 * 3600.0  # seconds for which a message to an app is said to hold


def secure_mod(message: Message, context: Context, app: App) -> Message:
    """For `ClientApp(mods=[secure_mod])`, around any app: nothing that leaves this site is its
    model.

    A message that asks for more than sums gets an error. Put this mod first, so that no other one
    stands between it and the server; only `flat_mod` may, which makes ordinary tensors of what
    comes before it is hashed here.
    """
    node = SecureNode.of(context)
    kind = message.metadata.message_type.partition(".")[0]
    order = secure_messages.secure_order_in(message.content)
    if order is None:
        content = _without_order(node, kind)
        if message.metadata.message_type == QUESTION:
            content["client"] = node.introduction(_frozen_layers_held(message, context, app))
        return Message(content, reply_to=message)
    if kind not in (TRAIN, EVALUATE):
        raise UserError(f"there are no secure sums of '{one_line(kind)}'")
    memory = SecureSiteMemory(memory_folder(context.node_config), node.settings, kind)
    with memory.held():
        site = SecureSite(node.settings, memory)
        if "terms" in order:
            content = _answer_offer(node, site, memory, message, context)
        else:
            request = secure_messages.request_of_records(message.content)
            work = _FlowerWork(node, memory, message, context, app)
            with keeping_reasons_here():
                content = secure_messages.answer_to_records(site.answer(request, work))
            if work.holds_frozen:
                content["client"] = ConfigRecord({FROZEN: work.holds_frozen})
    return Message(content, reply_to=message)


@contextmanager
def keeping_reasons_here() -> Iterator[None]:
    """What goes wrong with a site's own data is in its own log: the text may hold what no other
    may see.
    """
    try:
        yield
    except UserError:  # what the protocol refuses, in words that hold no number of an update
        raise
    except Exception:
        log.exception("this site failed under secure sums")
        raise UserError(APP_FAILED) from None


def secure_where_keyed(message: Message, context: Context, app: App) -> Message:
    """The ready app's: `secure_mod` at nodes that have a key.

    Others train for a server that sees their models; not a node that has a directory of sites, or
    an empty key: there a setting went wrong.
    """
    if "key" in context.node_config or context.node_config.get("sites"):
        return secure_mod(message, context, app)
    if secure_messages.secure_order_in(message.content) is not None:
        raise UserError(NO_KEY)
    return app(message, context)


def _without_order(node: SecureNode, kind: str) -> RecordDict:
    """What a site answers outside secure rounds: its name to a roll call, and else nothing."""
    if kind == TRAIN:
        raise UserError(NOT_SECURE)
    if kind == EVALUATE:
        return RecordDict({"metrics": MetricRecord()})
    return RecordDict({"client": node.introduction()})


def _frozen_layers_held(message: Message, context: Context, app: App) -> str:
    """The digest of the frozen layers that the app says it holds; empty where it holds none, or
    fails. Nothing but a digest leaves the site, and the app sees nothing but the one asked for.
    """
    order = {FROZEN: str(job_orders.read_orders(message.content).get(FROZEN, ""))}
    content = RecordDict({"config": job_orders.add_orders(ConfigRecord(), order)})
    question = Message(content, metadata=message.metadata)  # type: ignore[call-overload]
    try:
        reply = app(question, context)
        held = str(reply_intake.client_in_reply(reply.content).get(FROZEN, ""))
    except Exception:
        log.exception("this site cannot say whether it holds the server's frozen layers")
        return ""
    return held if A_DIGEST.fullmatch(held) else ""


def _run_of(message: Message, context: Context) -> FlowerRun:
    return FlowerRun(context.run_id, message.metadata.message_type, context.run_config)


def _answer_offer(
    node: SecureNode,
    site: SecureSite,
    memory: SecureSiteMemory,
    message: Message,
    context: Context,
) -> RecordDict:
    """Keys that sign the digest of what was sent; it is kept until enough others agree."""
    message_type = message.metadata.message_type
    run = _run_of(message, context)
    offered = secure_messages.read_offer(message.content, run, node.names)
    if offered.terms.kind != message_type.partition(".")[0]:
        raise UserError("the terms are those of another kind of round than the message")
    node.check(offered)
    was_run = memory.was_run(offered.work)
    keys = site.offer(Offer(offered.terms, offered.digest, offered.work, offered.attempt))
    if not was_run:
        memory.forget()
        memory.keep_offer(offered.content, offered.digest, run.digest)
    content = secure_messages.answer_to_records(keys)
    content["client"] = node.introduction()
    return content


@dataclass(eq=False)
class _FlowerWork:
    """A site's app, and what waits of its answer."""

    node: SecureNode
    memory: SecureSiteMemory
    message: Message  # the one that is answered
    context: Context
    app: App
    holds_frozen: str = ""  # the digest of the frozen layers that the app says it holds

    @property
    def _round(self) -> SiteRound:
        round = self.memory.load()
        assert round is not None  # the protocol has loaded it before
        return round

    def _offer(self) -> RecordDict:
        return self.memory.offer(self._round.digest, _run_of(self.message, self.context).digest)

    def run(self) -> SiteFacts:
        terms = self._round.terms
        content = self._offer()
        sent = self._sent_model() if terms.kind == TRAIN else None
        reply = self._answer_of_app(content)
        self._check_name(reply)
        held = reply_intake.client_in_reply(reply).get(FROZEN)
        agreed = job_orders.read_orders(content).get(FROZEN)
        self.holds_frozen = str(held) if held and held == agreed else ""
        if sent is None:
            return self._keep_counts(reply, terms)
        return self._keep_update(reply, sent, terms)

    def part(self, announcement: Announcement) -> Part:
        terms = announcement.terms
        facts, vectors = self.memory.part()
        if terms.kind == EVALUATE:
            return CountsPart(vectors["counts"])
        sent = self._sent_model()
        update = update_of_memory(facts, vectors, sent.layout)
        method = method_of_terms(terms)
        return UpdatePart(method, announcement, self.node.settings.name, sent, update)

    def forget(self) -> None:
        self.memory.forget()

    def _sent_model(self) -> Model:
        """The model from which the move is measured: the record that the app trains on."""
        round = self._round
        if SHARED.digest == round.digest and SHARED.sent is not None:
            return SHARED.sent
        with reading_secure_message():
            content = self._offer()
            arrays = content.array_records[self.node.names.arrays]
            sent = arrays_to_model(arrays, _layout_of(arrays, round.terms.reading))
        SHARED.remember(round.digest, content, _run_of(self.message, self.context).digest)
        SHARED.sent = sent
        return sent

    def _answer_of_app(self, content: RecordDict) -> RecordDict:
        """The app's answer to what was agreed on, with a seed of this site's own."""
        if not self.node.simulated:
            content = self._with_own_seed(content)
        run_config = dict(self.context.run_config)
        shown = {
            name: value for name, value in run_config.items() if name != secure_messages.RESUME
        }
        self.context.run_config = shown
        try:
            reply = self.app(self._message_for_app(content), self.context)
        except Exception as error:  # its text may hold what no other may see
            log.exception("the app failed under secure sums")
            raise UserError(_said_to_others(error)) from None
        finally:
            self.context.run_config = run_config
        if reply.has_error():
            log.error("the app failed under secure sums: %s", reply.error.reason)
            raise UserError(APP_FAILED)
        return reply.content

    def _message_for_app(self, content: RecordDict) -> Message:
        """What was agreed on, with nothing around it that the server could choose for this site
        alone: an app may take the group for the round.
        """
        metadata = Metadata(
            run_id=self.context.run_id,
            message_id="",
            src_node_id=0,
            dst_node_id=self.context.node_id,
            reply_to_message_id="",
            group_id=str(self._round.terms.round + 1),
            created_at=time.time(),
            ttl=LONGEST_TRAINING,
            message_type=self.message.metadata.message_type,
        )
        return Message(content, metadata=metadata)  # type: ignore[call-overload,no-any-return]

    def _with_own_seed(self, content: RecordDict) -> RecordDict:
        config = content.config_records[self.node.names.config]
        settings = {name: value for name, value in config.items() if name != job_orders.KEY}
        orders = job_orders.read_orders(content) | {"client-seed": self.node.seed(self._round.work)}
        records = dict(content)
        records[self.node.names.config] = job_orders.add_orders(ConfigRecord(settings), orders)
        return RecordDict(records)

    def _check_name(self, reply: RecordDict) -> None:
        stated = reply_intake.client_in_reply(reply).get("name")
        known = (self.node.settings.name, f"node {self.context.node_id}")
        if self.node.settings.directory is not None and stated and one_line(stated) not in known:
            raise UserError(
                f"this site's app calls itself {one_line(stated)}, but its key is that of"
                f" {self.node.settings.name}"
            )

    def _keep_update(self, reply: RecordDict, sent: Model, terms: Terms) -> SiteFacts:
        method = method_of_terms(terms)
        format = ReplyFormat(method.extras, self.node.size_key, self.node.names.arrays)
        named = reply_intake.named_reply(0, reply)
        decoded = reply_intake.decode_replies(
            [named], {named.name: 0}, sent, format, reuse=SHARED.matrices
        )
        SHARED.matrices = decoded.matrices
        if decoded.refused:
            log.error("this site's own update cannot be used: %s", decoded.refused[named.name])
            raise UserError("this site's own update cannot be used: its own log says why")
        update = _with_counted_steps(decoded.updates[0], sent)
        if update.steps is None and method.needs.steps:
            raise UserError(f"{NO_STEPS}: {reply_intake.HOW_TO_SEND_STEPS}")
        self.memory.keep_part(*update_to_memory(update))
        return SiteFacts(update.size, update.labelled)

    def _keep_counts(self, reply: RecordDict, terms: Terms) -> SiteFacts:
        labelled = reply_intake.labelled_in_reply(reply)
        if labelled is not None and len(labelled) != terms.findings:
            raise UserError("this site labels another number of findings than are evaluated")
        counts = score_histograms.histograms_to_words(reply, terms.findings)
        images = _images_evaluated(reply, self.node.size_key)
        words: NDArray[np.uint64] = np.append(counts, np.uint64(images))
        self.memory.keep_part({}, {"counts": words})
        return SiteFacts(0.0, labelled)


def _said_to_others(error: Exception) -> str:
    """Which file of weights is another one may be said: it comes from no patient. An app's own
    wrapper may stand around the error.
    """
    for one in (error, error.__cause__):
        if isinstance(one, OtherFrozenLayers):
            return str(one)
    return APP_FAILED


def _layout_of(arrays: Any, reading: Mapping[str, Any]) -> Layout:
    """The model's layout; JSON has a list where a classifier has several layers."""
    named = reading["classifier"]
    classifier = tuple(map(str, named)) if isinstance(named, list) else str(named)
    return layout_of_arrays(arrays, classifier)


def _with_counted_steps(update: Update, sent: Model) -> Update:
    """Steps as the app says, else by batch norm's counters, from which the server's follow; unknown
    where these have not moved either.
    """
    if update.steps is not None or not len(sent.counters):
        return update
    taken = int((update.model.counters - sent.counters).max())
    return replace(update, steps=taken if taken > 0 else None)


def _images_evaluated(reply: RecordDict, size_key: str) -> int:
    """How many images a site has evaluated; it may have none."""
    size = reply_intake.metrics_in_reply(reply).get(size_key, 0)
    return int(size) if isinstance(size, int) and size > 0 else 0

"""Secure sums around any ClientApp, whose training code stays as it is: `ClientApp(mods=[secure_mod])`.

The app trains and answers as ever, but its answer stops here: the update waits in the site's own memory
(`secure_memory`) while the sites agree on masks (`secure_site`), and only masked words leave, with a few numbers in
clear. A message that asks for more gets an error. Put this mod first, so that no other one stands between it and the
server.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from feddraw.errors import UserError
from feddraw.flower import frozen_layers, job_orders, reply_intake
from feddraw.flower.memory import default_folder
from feddraw.flower.secure_memory import Vault
from feddraw.flower.secure_messages import hash_of, order_in
from feddraw.flower.secure_site import Sitting
from feddraw.secure.session import FEWEST
from feddraw.secure.signing_keys import Directory, name_in, read_directory, read_key

App = Callable[[Message, Context], Message]

LISTED = (
    "num-examples",
    "partition-id",
    reply_intake.SECONDS,
    *reply_intake.LOSSES,
    *reply_intake.STEPS,
)  # metrics that leave a site
NO_KEY = (
    "the server asks for secure sums, and this node has no signing key: make one with `feddraw site key FILE`, and "
    "name it with key=… in the --node-config"
)
NOT_SECURE = "this site takes part in secure sums only, and the server asks for its model: it needs secure=true"


def secure_mod(message: Message, context: Context, app: App) -> Message:
    """For `ClientApp(mods=[secure_mod])`: nothing that leaves this site is its model."""
    return SecureNode(context).answer(message, app)


def secure_where_keyed(message: Message, context: Context, app: App) -> Message:
    """The ready app's: `secure_mod` at nodes that have a key. Others train for a server that sees their models."""
    if context.node_config.get("key"):
        return secure_mod(message, context, app)
    if order_in(message.content) is not None:
        raise UserError(NO_KEY)
    return app(message, context)


class SecureNode:
    """A node with its key, the keys of all sites, and its memory."""

    def __init__(self, context: Context) -> None:
        node = context.node_config
        if not node.get("key"):
            raise UserError(NO_KEY)
        self.key = read_key(Path(str(node["key"])))
        self.directory: Directory | None = read_directory(Path(str(node["sites"]))) if node.get("sites") else None
        self.fewest = int(node.get("fewest", FEWEST))
        self._frozen = ""  # the digest of the layers that the server sends once
        self._context = context
        self._memory = Path(str(node["memory"])) if node.get("memory") else default_folder()
        self._listed = {*LISTED, *(name.strip() for name in str(node.get("metrics", "")).split(","))}

    def answer(self, message: Message, app: App) -> Message:
        """What leaves the site."""
        order, kind = order_in(message.content), message.metadata.message_type.partition(".")[0]
        self._frozen = str(job_orders.found(message.content).get(frozen_layers.KEY, ""))
        if order is None and kind == "train":
            raise UserError(NOT_SECURE)
        if order is None:
            reply = app(message, self._context)
            return reply if reply.has_error() else Message(self.in_clear(reply.content), reply_to=message)
        vault = Vault(self._memory, order.run, self.key.public_key(), kind)
        if order.stage != "begin":
            with vault.held():
                return Message(Sitting(self, vault, kind, order).answer(message.content), reply_to=message)
        sitting = Sitting(self, vault, kind, order)
        sent = sitting.sent_model(message.content)  # before the app is called, which may write into what it gets
        received = hash_of(message.content, self._context.run_config)
        reply = app(message, self._context)
        if reply.has_error():
            return reply
        with vault.held():
            return Message(sitting.begin(sent, received, reply.content), reply_to=message)

    def name(self, content: RecordDict) -> str:
        """What this site is called in sums: by the directory, else by its app, its settings, or its number."""
        announced = content.get("client")
        own = announced.get("name") if isinstance(announced, ConfigRecord) else self._context.node_config.get("client")
        if self.directory is None:
            return reply_intake.one_line(own) if own else reply_intake.reply_of(self._context.node_id, content).name
        name = name_in(self.directory, self.key.public_key())
        if own and reply_intake.one_line(own) not in (name, f"node {self._context.node_id}"):
            raise UserError(f"this site calls itself {reply_intake.one_line(own)}, but its key is that of {name}")
        return name

    def in_clear(self, content: RecordDict) -> RecordDict:
        """What may leave of an app's answer: who it is, and single numbers under listed names. Never a tensor."""
        who = ConfigRecord({"name": self.name(content)})
        announced = content.get("client")
        if isinstance(announced, ConfigRecord):
            number, labelled = announced.get("number"), announced.get("labelled")
            if isinstance(number, int):
                who["number"] = number
            if isinstance(labelled, list) and all(isinstance(one, bool) for one in labelled):
                who["labelled"] = labelled
            if frozen_layers.KEY in announced and announced[frozen_layers.KEY] == self._frozen:
                who[frozen_layers.KEY] = self._frozen
        metrics = MetricRecord()
        for record in reply_intake.of_kind(content, MetricRecord).values():
            for name, value in record.items():
                if self.lists(name) and name not in metrics and isinstance(value, int | float):
                    metrics[name] = value if math.isfinite(value) else math.nan
        return RecordDict({"client": who, "metrics": metrics})

    def lists(self, metric: str) -> bool:
        """Whether a metric of this name may leave."""
        return metric in self._listed

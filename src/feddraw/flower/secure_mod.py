"""Secure sums around any ClientApp, whose training code stays as it is: `ClientApp(mods=[secure_mod])`.

The app trains and answers as ever, but its answer stops here: the update waits in the site's own memory
(`secure_memory`) while the sites agree on masks (`secure_site`), and only masked words leave, with a few numbers in
clear. A message that asks for more gets an error. Put this mod first, so that no other one stands between it and the
server.
"""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message

from feddraw.errors import UserError
from feddraw.flower.client_memory import folder_of
from feddraw.flower.secure_memory import Vault
from feddraw.flower.secure_messages import hash_of_message, order_in
from feddraw.flower.secure_site import NO_KEY, SecureNode, SiteRound

App = Callable[[Message, Context], Message]

NOT_SECURE = "this site takes part in secure sums only, and the server asks for its model: it needs secure=true"


def secure_mod(message: Message, context: Context, app: App) -> Message:
    """For `ClientApp(mods=[secure_mod])`: nothing that leaves this site is its model."""
    node, order = SecureNode(context, message.content), order_in(message.content)
    kind = message.metadata.message_type.partition(".")[0]
    if order is None and kind == "train":
        raise UserError(NOT_SECURE)
    if order is None:
        reply = app(message, context)
        return reply if reply.has_error() else Message(node.in_clear(reply.content), reply_to=message)
    vault = Vault(folder_of(context.node_config), order.run, node.key.public_key(), kind)
    if order.stage != "begin":
        with vault.held():
            return Message(SiteRound(node, vault, kind, order).answer(message.content), reply_to=message)
    part = SiteRound(node, vault, kind, order)
    sent = part.sent_model(message.content)  # before the app is called, which may write into what it gets
    received = hash_of_message(message.content, context.run_config)
    reply = app(message, context)
    if reply.has_error():
        return reply
    with vault.held():
        return Message(part.begin(sent, received, reply.content), reply_to=message)


def secure_where_keyed(message: Message, context: Context, app: App) -> Message:
    """The ready app's: `secure_mod` at nodes that have a key. Others train for a server that sees their models."""
    if context.node_config.get("key"):
        return secure_mod(message, context, app)
    if order_in(message.content) is not None:
        raise UserError(NO_KEY)
    return app(message, context)

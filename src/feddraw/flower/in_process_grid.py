"""A Flower Grid without a network: every message is answered at once, in this process, by a
ClientApp.

The one module that touches what Flower keeps private: from 1.38 on, messages ask for an identity
that only its own launchers set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

FIRST_NODE = 1001
SUPERLINK = 1


def identify_in_process_grid(run: int = 1, node: int = SUPERLINK) -> None:
    """Let this process make messages, as Flower's launchers do; before 1.38 any process may."""
    with suppress(ModuleNotFoundError):
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.task_id = 1
        TaskIdentity.run_id = run
        TaskIdentity.node_id = node


class InProcessGrid(Grid):
    """Nodes in this process, each given by its settings.

    `arrive` may change replies, as a network would.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
        arrive: Callable[[list[Message]], Iterable[Message]] | None = None,
    ) -> None:
        identify_in_process_grid()
        self.app = app
        self.arrive = arrive
        self._pushed: dict[str, Message] = {}
        self.contexts = {
            node_id: Context(
                run_id=1,
                node_id=node_id,
                node_config=dict(node),
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for node_id, node in enumerate(nodes, FIRST_NODE)
        }

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = [self._answer(message) for message in messages]
        return list(self.arrive(replies)) if self.arrive and replies else replies

    def _answer(self, message: Message) -> Message:
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # as a node would: the reason travels, the federation goes on
            return Message(Error(0, f"{type(error)}:<'{error}'>"), reply_to=message)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def _never_called(self, *arguments: Any, **options: Any) -> Any:
        """What a Grid must have, and a strategy does not use."""
        raise NotImplementedError

    set_run = create_message = _never_called
    run = property(_never_called)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = {str(uuid4()): message for message in messages}
        for identity, message in pushed.items():
            message.metadata.__dict__["_message_id"] = identity
        self._pushed |= pushed
        return list(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The next answer, or all of them where `arrive` wants to see them; what it loses, the
        SuperLink reports.
        """
        waiting = [self._pushed[identity] for identity in message_ids if identity in self._pushed]
        delivered = waiting if self.arrive else waiting[:1]
        for message in delivered:
            del self._pushed[message.metadata.message_id]
        replies = list(self.send_and_receive(delivered))
        answered = {reply.metadata.reply_to_message_id for reply in replies}
        lost = [message for message in delivered if message.metadata.message_id not in answered]
        return replies + [_node_is_gone(message) for message in lost]


def _node_is_gone(message: Message) -> Message:
    """How a SuperLink says that a node is gone: in its own name."""
    reply = Message(Error(0, "the node is not there"), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = SUPERLINK
    return reply

"""A Flower Grid without a network: every message is answered at once, in this process, by a ClientApp.

The one module that touches what Flower keeps private: messages ask for an identity that only its own launchers set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

FIRST_NODE = 1001


class InProcessGrid(Grid):
    """Nodes in this process, each given by its settings. `arrive` may change replies, as a network would."""

    def __init__(
        self,
        app: ClientApp,
        nodes: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
        arrive: Callable[[list[Message]], Iterable[Message]] | None = None,
    ) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.app, self.arrive = app, arrive
        self.contexts = {
            FIRST_NODE + index: Context(1, FIRST_NODE + index, dict(node), RecordDict(), dict(run_config or {}))
            for index, node in enumerate(nodes)
        }

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = [self._answer(message) for message in messages]
        return list(self.arrive(replies)) if self.arrive and replies else replies

    def _answer(self, message: Message) -> Message:
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # as a node would: the reason travels, the federation goes on
            return Message(Error(0, f"{type(error).__name__}: {error}"), reply_to=message)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

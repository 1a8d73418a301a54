"""Who gets and sends models in the flat form (`flat_models`): our own server and clients find out
with the messages that they exchange anyway, and everybody else sees ordinary tensors only.

The server names the hash of the model's layout in its orders, which other clients do not read. A
client that knows the flat form (`flat_mod`) answers with this hash, in a record of its own, and may
already send its model flat. From then on its node is sent flat models, until an answer comes
without the hash: so a node that was set back to an older version gets ordinary tensors again. The
first message to a node is therefore always ordinary, also after a restart of the server. This costs
one slow message per node, but no message beyond Flower's, and no client app need answer a question
that it does not know.

Both ends are at the edge: `FlatGrid` around the server's grid, `flat_mod` around the client's app.
Strategies, wrappers, other mods and apps see ordinary tensors, with the same bits. In secure rounds
sites hash and sign the ordinary tensors, each with its name, type, shape and bytes, and the orders
with the hash of the layout; so it does not matter in which form they came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from feddraw.errors import UserError
from feddraw.flower import job_orders
from feddraw.flower.array_records import Refused
from feddraw.flower.flat_models import (
    FlatLayout,
    check_layout,
    flat_record,
    is_flat,
    layout_in_record,
    ordinary_record,
)
from feddraw.text import one_line

App = Callable[[Message, Context], Message]

ORDER = "flat"  # the server's order with the hash of the model's layout
ANSWER = "feddraw flat"  # the record of an answer that says so too
DIGEST = "layout"  # the hash in it
UNREADABLE = 4711  # the code of the error that stands for a reply whose flat model is refused


# ---------------------------------------------------------------------------------- at the client


def flat_mod(message: Message, context: Context, app: App) -> Message:
    """For `ClientApp(mods=[flat_mod])`, around any app and before all other mods: models travel as
    a few arrays where the server is ours, and the app sees ordinary tensors.
    """
    digest = job_orders.read_orders(message.content).get(ORDER)
    if not isinstance(digest, str):
        return app(message, context)
    message.content = _read_content(message.content, digest)
    reply = app(message, context)
    if reply.has_content():
        reply.content = _answer_content(reply.content, digest)
    return reply


def _read_content(content: RecordDict, digest: str) -> RecordDict:
    """What the server sent, with ordinary tensors."""
    records = dict(content)
    for name, record in content.array_records.items():
        if is_flat(record):
            try:
                records[name] = ordinary_record(record, layout_in_record(record, digest))
            except Refused as error:
                raise UserError(f"the server's model cannot be read: {one_line(error)}") from None
    return RecordDict(records)


def _answer_content(content: RecordDict, digest: str) -> RecordDict:
    """An answer that says that this client knows the flat form. Its model is flat if it has the
    layout of the one that was sent; a client that keeps tensors to itself sends ordinary ones.
    """
    records = dict(content)
    for name, record in content.array_records.items():
        layout = FlatLayout.of_record(record)
        if layout is not None and layout.is_worth_it and layout.digest == digest:
            records[name] = flat_record(record, layout)
            break  # of several such records the server would take none
    records[ANSWER] = ConfigRecord({DIGEST: digest})
    return RecordDict(records)


# ------------------------------------------------------------------------------------ at the server


class _SentModel:
    """A model that is sent: its layout (None: it has no flat form), and its flat record."""

    def __init__(self, record: ArrayRecord) -> None:
        self.record = record
        layout = FlatLayout.of_record(record)
        self.layout = layout if layout is not None and layout.is_worth_it else None

    @cached_property
    def flat(self) -> ArrayRecord:
        assert self.layout is not None
        return flat_record(self.record, self.layout)


def flat_grid(grid: Grid, arrays_key: str) -> Grid:
    """A grid over which models go flat to nodes that know this form. `arrays_key` is the record of
    a message that holds the model.
    """
    return cast(Grid, FlatGrid(grid, arrays_key))


@Grid.register
class FlatGrid:
    """Another grid, whose messages to nodes and replies are changed on their way.

    All that it does not define is the other grid's, whatever a version of Flower has.
    """

    def __init__(self, grid: Grid, arrays_key: str) -> None:
        self._grid = grid
        self._arrays_key = arrays_key
        self._flat_nodes: set[int] = set()  # those whose last answer said that they know the form

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """As Flower's. All replies have ordinary tensors; one whose flat model is refused becomes
        an error with the reason.
        """
        messages = list(messages)
        layouts = self._announce(messages)
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        self._flat_nodes -= layouts.keys()
        for place, reply in enumerate(replies):
            layout = layouts.get(reply.metadata.src_node_id)
            if layout is not None and reply.has_content():
                replies[place] = self._read_reply(reply, layout)
        return replies

    def _announce(self, messages: Sequence[Message]) -> dict[int, FlatLayout]:
        """Add our order to all messages with a model, and make the model flat for nodes that know
        the form. The result is, by node, the layout that was announced to it.
        """
        layouts: dict[int, FlatLayout] = {}
        models: dict[int, _SentModel] = {}  # by identity: most messages share one record
        for message in messages:
            record = message.content.get(self._arrays_key)
            if not isinstance(record, ArrayRecord):
                continue
            if id(record) not in models:
                models[id(record)] = _SentModel(record)
            model = models[id(record)]
            if model.layout is None:
                continue
            content = job_orders.with_order(message.content, ORDER, model.layout.digest)
            if content is message.content:
                continue  # the server's orders are not in it: somebody else made this message
            node = message.metadata.dst_node_id
            if node in self._flat_nodes:
                content[self._arrays_key] = model.flat
            message.content = content
            layouts[node] = model.layout
        return layouts

    def _read_reply(self, reply: Message, layout: FlatLayout) -> Message:
        """A reply with ordinary tensors, and without the record that says that its node knows the
        flat form, which is noted here.
        """
        answer = reply.content.get(ANSWER)
        if isinstance(answer, ConfigRecord) and answer.get(DIGEST) == layout.digest:
            self._flat_nodes.add(reply.metadata.src_node_id)
        try:
            reply.content = _ordinary_content(reply.content, layout)
        except Refused as reason:
            error = Error(UNREADABLE, one_line(reason, 200))
            return Message(error=error, metadata=reply.metadata)  # type: ignore[call-overload,no-any-return]
        return reply


def _ordinary_content(content: RecordDict, layout: FlatLayout) -> RecordDict:
    """What a client answers, with ordinary tensors; `Refused` if its flat model does not fit. At
    most one record is expanded, and only to the layout that was sent: a small reply cannot become
    a large one.
    """
    records = {name: record for name, record in content.items() if name != ANSWER}
    flat = {
        name: record
        for name, record in records.items()
        if isinstance(record, ArrayRecord) and is_flat(record)
    }
    if len(flat) > 1:
        raise Refused(f"{len(flat)} flat models in one reply")
    for name, record in flat.items():
        check_layout(record, layout)
        records[name] = ordinary_record(record, layout)
    return RecordDict(records)

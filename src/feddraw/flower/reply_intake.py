"""From replies to updates in one matrix: who answered, who answered twice or late, and what cannot
be used.

A node is known by the name that its client gives (or its partition number, else its node id), so
neither the order of arrival nor a node id that changes with every start changes the result.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from feddraw.core import Extent, Model, Update
from feddraw.core.model import blank_model, model_in_row
from feddraw.flower.array_records import ArrayRecordReader, Refused, arrays_to_extras
from feddraw.server.policy import size_as_int_if_whole
from feddraw.system.threads import in_threads
from feddraw.text import one_line
from feddraw.training.allocator import return_freed_memory

LOSSES = ("loss", "train_loss", "train-loss")
SECONDS = "train-seconds"  # how long a client says that it worked
STEPS = ("num-steps", "num_steps", "steps")


@dataclass(frozen=True, eq=False)
class ReplyFormat:
    """Where an update's parts stand in a reply."""

    sends: Mapping[str, Extent]  # the vectors beside the model
    size_key: str = "num-examples"
    arrays_key: str = "arrays"


@dataclass(frozen=True, eq=False)
class Reply:
    """What a client answered, and how it is known."""

    node: int
    name: str
    order: tuple[int, int, str]
    content: RecordDict


def read_replies(
    messages: Iterable[Message], asked: Collection[int], group: str
) -> tuple[list[Reply], dict[int, str]]:
    """Valid replies in client order, and, by node, why others are not valid."""
    replies, failures = [], {}
    for message in messages:
        node = message.metadata.src_node_id
        if message.has_error():
            if node in asked:  # of a node that is gone, the server's own id is all that comes
                failures[node] = (
                    f"its app failed: {one_line(message.error.reason or 'no reason given')}"
                )
        elif node not in asked:
            failures[node] = "it was not asked"
        elif message.metadata.group_id != group:
            failures[node] = (
                f"it answers round {one_line(message.metadata.group_id)}, not round {group}"
            )
        else:
            replies.append(named_reply(node, message.content))
    once, twice = _one_reply_per_node(replies)
    answered = {reply.node for reply in once}
    return once, {node: why for node, why in (failures | twice).items() if node not in answered}


def named_reply(node: int, content: RecordDict) -> Reply:
    """What a client answers, under the name that it gives."""
    about = client_in_reply(content)
    name, number = about.get("name"), about.get("number")
    given = one_line(name) if isinstance(name, str) else ""
    if number is None:
        number = metrics_in_reply(content).get("partition-id")
    if isinstance(number, int | float) and math.isfinite(number):
        label = given or f"partition {int(number)}"
        return Reply(node, label, (0, int(number), label), content)
    label = given or f"node {node}"
    return Reply(node, label, (1, 0, label), content)


def client_in_reply(content: RecordDict) -> Mapping[str, Any]:
    """What a client says of itself: its name, its number, which findings it labels."""
    about = content.get("client")
    return about if isinstance(about, ConfigRecord) else {}


def _one_reply_per_node(replies: Sequence[Reply]) -> tuple[list[Reply], dict[int, str]]:
    """One reply per node. Equal copies count once; of two different ones, neither counts."""
    by_node: dict[int, Reply] = {}
    torn = {}
    for reply in replies:
        first = by_node.setdefault(reply.node, reply)
        if first is not reply and not _same_replies(first.content, reply.content):
            torn[reply.node] = "it answered twice, and not the same"
    once = [reply for node, reply in by_node.items() if node not in torn]
    return sorted(once, key=lambda reply: reply.order), torn


Kind = TypeVar("Kind", ArrayRecord, MetricRecord)


def records_of_kind(content: RecordDict, kind: type[Kind]) -> dict[str, Kind]:
    """The records of one kind.

    Flower's own views are cycles that would keep a reply's tensors in memory.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


def metrics_in_reply(content: RecordDict) -> dict[str, Any]:
    """All numbers and lists of a reply; of two records with one name for a metric, the first
    counts.
    """
    found: dict[str, Any] = {}
    for metrics in records_of_kind(content, MetricRecord).values():
        found = dict(metrics.items()) | found
    return found


def _same_replies(one: RecordDict, other: RecordDict) -> bool:
    return one.keys() == other.keys() and all(one[key] == other[key] for key in one)


def decode_replies(
    replies: Sequence[Reply],
    numbers: Mapping[str, int],
    sent: Model,
    format: ReplyFormat,
    *,
    keep: bool = False,
    room: Model | None = None,
) -> tuple[list[Update], dict[str, str], Model]:
    """Updates whose models are rows of one matrix, and, by name, why others cannot be read.

    Unless `keep` is set, tensors are removed from the messages as they are read, so that replies
    never take twice their memory. `room` is the matrix of the round before, if there is one: memory
    that is used for the first time is slow.
    """
    fresh = room is None or len(room.params) != len(replies)
    matrices, reader = (
        blank_model(sent.layout, len(replies)) if fresh else room,
        ArrayRecordReader(sent.layout),
    )
    assert matrices is not None

    def decode_row(row: int) -> Update | Refused:
        reply, into = replies[row], model_in_row(matrices, row)
        try:
            return _decode_update(reply.content, numbers[reply.name], into, reader, format, keep)
        except Refused as reason:
            return reason
        finally:
            if fresh and not keep:
                # of the reply that was read: else all replies would be there twice
                return_freed_memory()

    rows = range(len(replies))
    found = [decode_row(row) for row in rows] if fresh else in_threads(decode_row, rows)
    refused = {
        r.name: one_line(one, 200)
        for r, one in zip(replies, found, strict=True)
        if isinstance(one, Refused)
    }
    updates = [one for one in found if isinstance(one, Update)]
    return _replies_without_gaps(updates, matrices) if refused else updates, refused, matrices


def _replies_without_gaps(updates: Sequence[Update], matrices: Model) -> list[Update]:
    """Moved to the first rows of the matrices, so that no row of a refused reply is between
    them.
    """
    moved = []
    for number, update in enumerate(updates):
        into = model_in_row(matrices, number)
        for name in ("params", "buffers", "counters"):
            np.copyto(getattr(into, name), getattr(update.model, name))
        moved.append(replace(update, model=into))
    return moved


def _decode_update(
    content: RecordDict,
    client: int,
    into: Model,
    reader: ArrayRecordReader,
    format: ReplyFormat,
    keep: bool,
) -> Update:
    metrics, size = _reply_metrics_and_size(content, format.size_key)
    beside = records_of_kind(content, ArrayRecord).get("extra") if format.sends else None
    extra = arrays_to_extras(beside, format.sends, into.layout)
    name = _record_of_model(content, format.arrays_key)
    arrays = content[name]
    assert isinstance(arrays, ArrayRecord)
    reader.read(arrays, into)
    del arrays
    if not keep:
        del content[name]
    numbers = {
        k: float(v) for k, v in metrics.items() if isinstance(v, int | float) and math.isfinite(v)
    }
    steps = next((int(numbers[key]) for key in STEPS if key in numbers), 1)
    loss = next((numbers[key] for key in LOSSES if key in numbers), 0.0)
    seconds = numbers.pop(SECONDS, math.nan)
    return Update(
        client,
        into,
        size,
        steps,
        numbers | {"loss": loss},
        extra,
        labelled_in_reply(content),
        seconds,
    )


def size_and_labels_in_reply(
    content: RecordDict, size_key: str
) -> tuple[float, NDArray[np.bool_] | None]:
    """How many images a client says it has, and which findings it labels."""
    return _reply_metrics_and_size(content, size_key)[1], labelled_in_reply(content)


def seconds_in_reply(content: RecordDict) -> float:
    """How long a client says that it worked; NaN where it says nothing."""
    given = metrics_in_reply(content).get(SECONDS)
    return float(given) if isinstance(given, int | float) else math.nan


def labelled_in_reply(content: RecordDict) -> NDArray[np.bool_] | None:
    """Which findings the client says it labels; all where it says nothing."""
    given = client_in_reply(content).get("labelled")
    if given is None:
        return None
    if not (isinstance(given, list) and all(isinstance(one, bool) for one in given)):
        raise Refused("its list of labelled findings is no list of true and false")
    return np.array(given, bool)


def _reply_metrics_and_size(content: RecordDict, size_key: str) -> tuple[MetricRecord, float]:
    """The first record that has a size, and this size: any positive number."""
    found = [
        metrics
        for metrics in records_of_kind(content, MetricRecord).values()
        if size_key in metrics
    ]
    if not found:
        raise Refused(f"no {size_key} among its metrics")
    value = found[0][size_key]
    if isinstance(value, list) or not math.isfinite(value) or value <= 0:
        raise Refused(f"{size_key} = {value!s:.20} is not a positive number")
    return found[0], size_as_int_if_whole(value)


def tensors_in_reply(reply: Reply, arrays_key: str) -> frozenset[str]:
    """Which tensors a reply's model has; none where it has no model."""
    try:
        return frozenset(reply.content[_record_of_model(reply.content, arrays_key)])
    except Refused:
        return frozenset()


def _record_of_model(content: RecordDict, arrays_key: str) -> str:
    """The record that holds the model: the one of this name, or the only one there is."""
    names = [name for name in records_of_kind(content, ArrayRecord) if name != "extra"]
    if arrays_key in names or len(names) == 1:
        return arrays_key if arrays_key in names else names[0]
    raise Refused(
        f"{len(names)} records of tensors, none of them '{arrays_key}'" if names else "no tensors"
    )

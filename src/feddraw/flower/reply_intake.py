"""From replies to updates in one matrix: who answered, who answered twice or late, what is too
large to be read, and what cannot be used.

A node is known by the name that its client gives (or its partition number, else its node id), so
neither the order of arrival nor a node id that changes with every start changes the result.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from feddraw.core import Extra, Model, Update
from feddraw.core.model import blank_model, model_in_row
from feddraw.flower.array_records import ArrayRecordReader, Refused, arrays_to_extras
from feddraw.flower.flat_exchange import UNREADABLE
from feddraw.flower.site_errors import reason_in_error
from feddraw.server.gate import NO_STEPS, finite_number
from feddraw.server.policy import size_as_int_if_whole
from feddraw.system.threads import in_threads
from feddraw.text import one_line
from feddraw.training.allocator import return_freed_memory

LOSSES = ("loss", "train_loss", "train-loss")
SECONDS = "train-seconds"  # how long a client says that it worked
EVALUATION_SECONDS = "evaluate-seconds"
MOST_SECONDS = 1e9  # beyond it a client's own word about its time is nonsense
STEPS = ("num-steps", "num_steps", "steps")
HOW_TO_SEND_STEPS = "let its app send num-steps, a whole number, among the metrics"

MOST_RECORDS = 100  # in one reply
MOST_METRICS = 1000  # in all its records together; a list counts once
LARGEST_METRICS = 64 << 20  # bytes of its metrics and settings: numbers at 8, names and texts
# bytes of its tensors, in those of the model that was sent: it may come in a wider type, with what
# the method asks for beside it, and with records of the user's own
LARGEST_TENSORS_TIMES = 16
SMALL_TENSORS = 16 << 20  # bytes that are never too many


# ------------------------------------------------------------------------------------ from messages


@dataclass(frozen=True, eq=False)
class Reply:
    """What a client answered, and how it is known."""

    node: int
    name: str
    order: tuple[int, int, str]
    content: RecordDict
    arrival: int = 0  # how many replies came before it


def read_replies(
    messages: Iterable[Message],
    asked: Collection[int],
    group: str,
    most_bytes: float | None = None,
) -> tuple[list[Reply], dict[int, str]]:
    """Valid replies in client order, and, by node, why others are not valid.

    `asked` are the nodes that a reply may come from, `group` is the messages' own, and `most_bytes`
    what tensors may take in one reply (None: no limit).
    """
    replies: list[Reply] = []
    failures: dict[int, str] = {}
    for message in messages:
        node = message.metadata.src_node_id
        reason = _why_not_valid(message, asked, group, most_bytes)
        if not reason:
            reply = named_reply(node, message.content)
            replies.append(replace(reply, arrival=len(replies)))
        elif node in asked or not message.has_error():
            # the error of a node that is gone has the server's own id, and says nothing
            failures[node] = reason
    once, torn = _one_reply_per_node(replies)
    answered = {reply.node for reply in once}
    failures |= torn
    return once, {node: why for node, why in failures.items() if node not in answered}


def _why_not_valid(
    message: Message, asked: Collection[int], group: str, most_bytes: float | None
) -> str:
    """Why a message is not a reply that can be read; empty if it is."""
    if message.has_error():
        if message.error.code == UNREADABLE:
            return one_line(message.error.reason or "no reason given", 200)
        return f"its app failed: {reason_in_error(message.error.reason)}"
    if message.metadata.src_node_id not in asked:
        return "it was not asked"
    if message.metadata.group_id != group:
        return f"it answers round {one_line(message.metadata.group_id)}, not round {group}"
    return why_too_large(message.content, most_bytes)


def named_reply(node: int, content: RecordDict) -> Reply:
    """What a client answers, under the name that it gives."""
    client = client_in_reply(content)
    name = client.get("name")
    label = one_line(name) if isinstance(name, str) else ""
    number = client.get("number")
    if number is None:
        number = metrics_in_reply(content).get("partition-id")
    if isinstance(number, int | float) and finite_number(number):
        label = label or f"partition {int(number)}"
        return Reply(node, label, (0, int(number), label), content)
    label = label or f"node {node}"
    return Reply(node, label, (1, 0, label), content)


def _one_reply_per_node(replies: Sequence[Reply]) -> tuple[list[Reply], dict[int, str]]:
    """One reply per node. Equal copies count once; of two different ones, neither counts."""
    by_node: dict[int, Reply] = {}
    torn: dict[int, str] = {}
    for reply in replies:
        first = by_node.setdefault(reply.node, reply)
        if first is not reply and not _same_content(first.content, reply.content):
            torn[reply.node] = "it answered twice, and not the same"
    once = [reply for node, reply in by_node.items() if node not in torn]
    return sorted(once, key=lambda reply: reply.order), torn


def _same_content(first: RecordDict, second: RecordDict) -> bool:
    return first.keys() == second.keys() and all(first[key] == second[key] for key in first)


# ---------------------------------------------------------------------------------- how large it is


def why_too_large(content: RecordDict, most_bytes: float | None = None) -> str:
    """Why a reply is not read at all; empty if it may be. `most_bytes` is the limit of tensors."""
    if len(content) > MOST_RECORDS:
        return f"its reply has {len(content):,} records, at most {MOST_RECORDS:,} are read"
    metrics = sum(map(len, records_of_kind(content, MetricRecord).values()))
    if metrics > MOST_METRICS:
        return f"its reply has {metrics:,} metrics, at most {MOST_METRICS:,} are read"
    words = sum(_bytes_of_words(record) for record in content.values())
    if words > LARGEST_METRICS:
        return (
            f"its reply has {words >> 20:,} MB of metrics and settings, at most"
            f" {LARGEST_METRICS >> 20:,} MB are read"
        )
    tensors = sum(map(_bytes_of_tensors, records_of_kind(content, ArrayRecord).values()))
    if most_bytes is not None and tensors > most_bytes:
        return (
            f"its reply has {tensors >> 20:,} MB of tensors, at most {most_bytes / 2**20:,.0f} MB"
            " are read"
        )
    return ""


def most_bytes(sent: ArrayRecord) -> float:
    """How many bytes of tensors a reply to this model may have."""
    return max(SMALL_TENSORS, LARGEST_TENSORS_TIMES * _bytes_of_tensors(sent))


def _bytes_of_tensors(record: ArrayRecord) -> int:
    return sum(len(array.data) for array in record.values())


def _bytes_of_words(record: ArrayRecord | MetricRecord | ConfigRecord) -> int:
    """A record without its tensors' numbers: names, texts and bytes by their length, numbers
    at 8.
    """
    names = sum(map(len, record))
    if isinstance(record, ArrayRecord):
        return names
    return names + sum(map(_bytes_of_value, record.values()))


def _bytes_of_value(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list):
        texts = len(value) > 0 and isinstance(value[0], str | bytes)  # all are of one type
        return sum(map(len, value)) if texts else 8 * len(value)
    return 8


# ------------------------------------------------------------------------------------ what it holds


Kind = TypeVar("Kind", ArrayRecord, MetricRecord)


def records_of_kind(content: RecordDict, kind: type[Kind]) -> dict[str, Kind]:
    """The records of one kind.

    Flower's own views are cycles that would keep a reply's tensors in memory.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


def client_in_reply(content: RecordDict) -> Mapping[str, Any]:
    """What a client says of itself: its name, its number, which findings it labels."""
    client = content.get("client")
    return client if isinstance(client, ConfigRecord) else {}


def metrics_in_reply(content: RecordDict) -> dict[str, Any]:
    """All numbers and lists of a reply; of two records with one name for a metric, the first
    counts.
    """
    metrics: dict[str, Any] = {}
    for record in records_of_kind(content, MetricRecord).values():
        for name, value in record.items():
            metrics.setdefault(name, value)
    return metrics


def _metrics_and_size(content: RecordDict, size_key: str) -> tuple[MetricRecord, float]:
    """The first record that has a size, and this size: any positive number."""
    for metrics in records_of_kind(content, MetricRecord).values():
        if size_key in metrics:
            size = metrics[size_key]
            if isinstance(size, list) or not finite_number(size) or size <= 0:
                raise Refused(f"{size_key} = {size!s:.20} is not a positive number")
            return metrics, size_as_int_if_whole(size)
    raise Refused(f"no {size_key} among its metrics")


def labelled_in_reply(content: RecordDict) -> NDArray[np.bool_] | None:
    """Which findings the client says it labels; all where it says nothing."""
    labelled = client_in_reply(content).get("labelled")
    if labelled is None:
        return None
    if not (isinstance(labelled, list) and all(isinstance(label, bool) for label in labelled)):
        raise Refused("its list of labelled findings is no list of true and false")
    return np.array(labelled, bool)


def tensors_in_reply(reply: Reply, arrays_key: str) -> frozenset[str]:
    """Which tensors a reply's model has; none where it has no model."""
    try:
        return frozenset(reply.content[_record_of_model(reply.content, arrays_key)])
    except Refused:
        return frozenset()


def _record_of_model(content: RecordDict, arrays_key: str) -> str:
    """The record that holds the model: the one of this name, or the only one there is."""
    names = [name for name in records_of_kind(content, ArrayRecord) if name != "extra"]
    if arrays_key in names:
        return arrays_key
    if len(names) == 1:
        return names[0]
    if not names:
        raise Refused("no tensors")
    raise Refused(f"{len(names)} records of tensors, none of them '{arrays_key}'")


# ------------------------------------------------------------------------------------ into a matrix


@dataclass(frozen=True, eq=False)
class ReplyFormat:
    """Where an update's parts stand in a reply."""

    extras: Mapping[str, Extra]  # the vectors beside the model
    size_key: str = "num-examples"
    arrays_key: str = "arrays"
    needs_steps: bool = False  # a reply that does not tell its steps is refused


class DecodedReplies(NamedTuple):
    """The updates of a round, whose models are rows of one matrix of each kind."""

    updates: list[Update]
    refused: dict[str, str]  # by name, why a reply cannot be read
    matrices: Model


def decode_replies(
    replies: Sequence[Reply],
    numbers: Mapping[str, int],
    sent: Model,
    format: ReplyFormat,
    *,
    keep: bool = False,
    reuse: Model | None = None,
) -> DecodedReplies:
    """The replies as updates; `numbers` are those of the clients by name.

    Unless `keep` is set, tensors are removed from the messages as they are read, so that replies
    never take twice their memory. `reuse` are the matrices of the round before, if there were
    some: memory that is used for the first time is slow.
    """
    if reuse is not None and not _has_rows_for(reuse, len(replies), sent):
        reuse = None
    matrices = blank_model(sent.layout, len(replies)) if reuse is None else reuse
    reader = ArrayRecordReader(sent.layout)

    def decode_row(row: int) -> Update | Refused:
        reply = replies[row]
        into = model_in_row(matrices, row)
        try:
            update = _decode_update(reply.content, numbers[reply.name], into, reader, format)
        except Refused as reason:
            return reason
        else:
            if not keep:
                del reply.content[_record_of_model(reply.content, format.arrays_key)]
            return update
        finally:
            if reuse is None and not keep:
                # of the reply that was read: else all replies would be there twice
                return_freed_memory()

    rows = range(len(replies))
    decoded = map(decode_row, rows) if reuse is None else in_threads(decode_row, rows)
    decoded = list(decoded)
    updates = [update for update in decoded if isinstance(update, Update)]
    refused = {
        reply.name: one_line(reason, 200)
        for reply, reason in zip(replies, decoded, strict=True)
        if isinstance(reason, Refused)
    }
    if refused:
        updates = _without_gaps(updates, matrices)
    return DecodedReplies(updates, refused, matrices)


def _has_rows_for(matrices: Model, replies: int, sent: Model) -> bool:
    return len(matrices.params) == replies and matrices.layout == sent.layout


def _without_gaps(updates: Sequence[Update], matrices: Model) -> list[Update]:
    """Moved to the first rows of the matrices, so that no row of a refused reply is between
    them.
    """
    moved: list[Update] = []
    for row, update in enumerate(updates):
        into = model_in_row(matrices, row)
        np.copyto(into.params, update.model.params)
        np.copyto(into.buffers, update.model.buffers)
        np.copyto(into.counters, update.model.counters)
        moved.append(replace(update, model=into))
    return moved


def _decode_update(
    content: RecordDict, client: int, into: Model, reader: ArrayRecordReader, format: ReplyFormat
) -> Update:
    """One reply as an update; its tensors are copied to a row of the matrices."""
    metrics, size = _metrics_and_size(content, format.size_key)
    vectors = records_of_kind(content, ArrayRecord).get("extra") if format.extras else None
    extra = arrays_to_extras(vectors, format.extras, into.layout)
    arrays = content[_record_of_model(content, format.arrays_key)]
    assert isinstance(arrays, ArrayRecord)
    reader.read(arrays, into)
    numbers = dict(_finite_numbers(metrics))
    seconds = numbers.pop(SECONDS, math.nan)
    loss = _first_of(LOSSES, numbers)
    steps = _first_of(STEPS, numbers)
    if steps is None and format.needs_steps:
        raise Refused(f"{NO_STEPS}: {HOW_TO_SEND_STEPS}")
    return Update(
        client=client,
        model=into,
        size=size,
        steps=None if steps is None else int(steps),
        metrics=numbers | {"loss": 0.0 if loss is None else loss},
        extra=extra,
        labelled=labelled_in_reply(content),
        seconds=seconds,
    )


def _finite_numbers(metrics: MetricRecord) -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        if isinstance(value, int | float) and finite_number(value):
            yield name, float(value)


def _first_of(names: Sequence[str], numbers: Mapping[str, float]) -> float | None:
    """The number under the first of these names that is there."""
    return next((numbers[name] for name in names if name in numbers), None)

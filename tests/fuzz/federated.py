"""Messages of a federation as targets: what a client answers to the server, and what a server asks
of a client.

Inputs are the bytes of Flower's own messages. What Flower itself cannot read counts as refused; the
rest passes the strategy beside three honest replies, and must leave those counted and the model
finite.
"""

from __future__ import annotations

import copy
import logging
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Wire
from guided import Target, mutate

import tiny
from bad_replies import (
    BAD_BESIDE,
    BAD_REPLIES,
    NODES,
    TENSOR,
    answered,
    asked,
    copied,
    reply,
    server,
    spoilt,
)
from feddraw.core import Update
from feddraw.errors import UserError
from feddraw.experiment.settings import Experiment, make_method
from feddraw.flower import array_records, client_app, metric_means, reply_intake, score_histograms
from feddraw.flower.array_records import (
    model_to_arrays,
    pack_array,
    unpack_array,
    vectors_to_arrays,
)
from feddraw.flower.clear_rounds import ClearRounds
from feddraw.flower.client_app import Site
from feddraw.flower.in_process_grid import identify_in_process_grid
from feddraw.flower.roster import Roster
from feddraw.flower.score_histograms import histograms_to_metrics, merged_histogram_metrics
from feddraw.tasks.findings import findings
from feddraw.training.client import Trainer

CLASSES = ("bright", "left")
WORDS = (
    b"num-examples",
    b"arrays",
    b"extra",
    b"client",
    b"\x93NUMPY\x01\x00",
    b"(2, 6)",
    b"<f8",
    b"|O",
    b"PK\x03\x04",
)
logging.getLogger("flwr").setLevel(logging.CRITICAL)


@cache
def round_of_four() -> tuple[list[Update], Any, Any, Any]:
    """SCAFFOLD's, which sends most: updates, the model that was sent, the method and its state."""
    method = make_method(Experiment(method="scaffold"))
    kept: list[list[Update]] = []
    engine = tiny.Altered(
        tiny.bench(method), lambda updates: kept.append([*map(tiny.copied, updates)]) or updates
    )
    first, _ = tiny.train(method, rounds=2, engine=engine)
    return kept[1], first.next_model, method, first.state


def content(number: int) -> RecordDict:
    return reply(round_of_four()[0][number], tiny.NAMES[number])


def wire(message: Message) -> bytes:
    return bytes(message_to_proto(message).SerializeToString())


def received(data: bytes) -> Message:
    """As Flower hands it on; what it cannot read never comes to us."""
    try:
        return message_from_proto(Wire.FromString(data))
    except Exception as error:
        raise UserError(f"Flower itself refuses it: {type(error).__name__}") from None


# ------------------------------------------------------------------------------------------ replies


@cache
def template() -> Any:
    _, sent, method, state = round_of_four()
    return server(method, sent, state)


def read_reply(data: bytes, _: Path) -> object:
    message = received(data)
    waiting = copy.copy(template())
    waiting.progress = replace(waiting.progress, roster=Roster(), last_weighted={})
    waiting.history = []
    waiting._clear = ClearRounds(waiting.options, waiting.weighted_by_key, waiting.arrayrecord_key)
    honest = [answered(node, content(number)) for number, node in enumerate(NODES[1:], 1)]
    waiting.aggregate_train(1, [message, *honest])
    ledger = {entry.client: entry for entry in waiting.history[0].ledger}
    check(ledger, waiting.model.params)
    waiting.aggregate_evaluate(1, [message])
    if message.has_content():
        score_histograms.histogram_metrics_for_log(
            merged_histogram_metrics([message.content], CLASSES, findings()), findings()
        )
    refused = [entry.status for entry in ledger.values() if entry.status.startswith("refused")]
    if refused:
        raise UserError(refused[0])
    return waiting.model


def check(ledger: dict[str, Any], params: np.ndarray) -> None:
    """One hostile client that answers first may take an honest one's name; the others count, and
    all is finite.
    """
    assert sum(entry.weighted for entry in ledger.values()) >= 2, "honest clients do not count"
    assert np.isfinite(params).all(), "the model is not finite"
    assert not any(
        "\n" in text for name, entry in ledger.items() for text in (name, entry.status)
    ), "not one line"


def evaluated() -> RecordDict:
    counts = score_histograms.count_by_score(np.full((4, 2), 0.5), np.array([[0, 1]] * 4))
    return RecordDict(
        {
            "metrics": MetricRecord(
                {"num-examples": 4, **histograms_to_metrics("validation", counts)}
            )
        }
    )


def reply_seeds() -> list[bytes]:
    good = content(0)
    kinds = {**BAD_REPLIES, **BAD_BESIDE}
    odd: list[dict[str, Any]] = [
        {"validation-places": [0, 1], "validation-counts": [1.5, float("nan")], "num-examples": 2},
        {"test-places": [-1], "test-counts": [2**62], "num-examples": 1},
        {"num-examples": 5, "partition-id": float("nan")},
    ]
    contents = [
        good,
        evaluated(),
        *(spoilt(good, change) for change, _ in kinds.values()),
        *(RecordDict({"metrics": MetricRecord(numbers)}) for numbers in odd),
        RecordDict({"client": ConfigRecord({"name": tiny.NAMES[2], "number": 1.5})}),
        RecordDict({"client": ConfigRecord({"name": "absent 0\n", "number": "x"})}),
        in_bfloat16(good),
    ]
    late, stranger = answered(NODES[0], good, group="0"), answered(7, good)
    again, other = answered(NODES[1], content(1)), answered(NODES[1], good)
    failed = [Message(Error(0, "went\nwrong"), reply_to=asked(node)) for node in (NODES[0], 7)]
    return [
        wire(one)
        for one in (
            *(answered(NODES[0], one) for one in contents),
            late,
            stranger,
            again,
            other,
            *failed,
        )
    ]


def in_bfloat16(good: RecordDict) -> RecordDict:
    """Half of each number, under that type's name."""
    halved = copied(good)
    arrays: Any = halved["arrays"]
    arrays[TENSOR] = pack_array(unpack_array(arrays[TENSOR]), "bfloat16")
    return halved


def reshape(data: bytes, rng: random.Random) -> bytes:
    """A message that Flower reads: one tensor's bytes or one number changed, or records mixed from
    two replies.
    """
    message = Wire.FromString(data)
    items = message.content.items
    if not items:
        return mutate(data, [data], WORDS, rng)
    item = rng.choice(list(items))
    if item.HasField("array_record") and item.array_record.items:
        array = rng.choice(list(item.array_record.items)).value
        array.data = mutate(array.data[:4096], [array.data], WORDS, rng)
        array.dtype = rng.choice((array.dtype, array.dtype, "bfloat16", "float16", "x\ny"))
    elif item.HasField("metric_record") and item.metric_record.items:
        value = rng.choice(list(item.metric_record.items)).value
        change_number(value, rng)
    item.key = rng.choice((item.key, item.key, item.key, "extra", "arrays", "client", "metrics"))
    return bytes(message.SerializeToString())


def change_number(value: Any, rng: random.Random) -> None:
    whole, real = (
        rng.choice((0, -1, 1, 2**63 - 1, -(2**63))),
        rng.choice((0.5, 1e308, float("nan"), float("-inf"))),
    )
    match rng.randrange(5):
        case 0:
            value.sint64 = whole
        case 1:
            value.double = real
        case 2:
            value.sint_list.vals[:] = [whole, 1]
        case 3:
            value.double_list.vals[:] = [real, 1.0]
        case _:
            value.uint64 = 2**64 - 1


# ----------------------------------------------------------------------------------------- requests


@cache
def own_site(room: Path) -> Site:
    method = round_of_four()[2]
    trainer = Trainer(
        tiny.build, tiny.examples(), tiny.shards(), tiny.TRAINING, method.local, asks=method.asks
    )
    return Site(trainer, "North", 0, 0, room / "memory")


def read_request(data: bytes, room: Path) -> object:
    message = received(data)
    if not message.has_content():
        raise UserError("no content")
    client_app._vectors_sent(message.content, "memory")
    return client_app.read_site_job(own_site(room), message.content)


def request_seeds() -> list[bytes]:
    _, sent, method, state = round_of_four()
    numbers: list[dict[str, Any]] = [
        {"round": 1, "rounds": 3, "client-seed": 5, "effort": 0.5},
        {"server-round": 2, "seed": 0, "run": "abc"},
        {"round": "x"},
        {"server-round": "y"},
        {"round": -1},
        {"effort": [1.0]},
        {},
    ]
    found = []
    for config in numbers:
        request = RecordDict({"arrays": model_to_arrays(sent), "config": ConfigRecord(config)})
        request["broadcast"] = vectors_to_arrays(method.broadcast(state))
        request["memory"] = vectors_to_arrays({"control": sent.params})
        found.append(request)
    spoilt_one, empty = copied(found[0]), RecordDict({"config": ConfigRecord({})})
    spoilt_one["broadcast"] = ArrayRecord(
        {"x": array_records.Array("float32", (1,), array_records.NUMPY_ARRAY, b"")}
    )
    spoilt_one["arrays"] = ArrayRecord()
    kinds = ("turned", "integers", "an archive", "another kind", "a tensor too many")
    others = [
        *(spoilt(found[0], BAD_REPLIES[kind][0]) for kind in kinds),
        in_bfloat16(found[0]),
        spoilt_one,
        empty,
    ]
    return [wire(answered(NODES[0], one)) for one in (*found, *others)]


# ---------------------------------------------------------------------------------------------- all


def targets() -> list[Target]:
    identify_in_process_grid()
    inside = (
        "read_replies _why_not_valid why_too_large named_reply _one_reply_per_node records_of_kind"
        " _same_content one_line decode_replies _without_gaps _decode_update _metrics_and_size"
        " _record_of_model"
    )
    reading = [getattr(reply_intake, name) for name in inside.split()]
    within = "unpack_array _view_npy _values_like _check_names arrays_to_vectors"
    tensors = [getattr(array_records, name) for name in within.split()]
    tensors.append(array_records.ArrayRecordReader.read)
    counting = [
        score_histograms.add_up_histograms,
        score_histograms._whole_numbers,
        metric_means.weighted_metric_means,
        metric_means.size_in_metrics,
        reply_intake.metrics_in_reply,
    ]
    asking = [
        client_app.read_site_job,
        client_app._vectors_sent,
        client_app._model_sent,
    ]
    return [
        Target(
            "Flower replies",
            read_reply,
            (UserError,),
            reply_seeds(),
            [*reading, *tensors, array_records.arrays_to_extras, *counting],
            WORDS,
            reshape,
        ),
        Target(
            "Flower requests",
            read_request,
            (UserError,),
            request_seeds(),
            [*asking, *tensors],
            WORDS,
            reshape,
        ),
    ]

"""Whatever stands in the place of a number, a client's message costs its own update at most: through
`feddraw.aggregate` and in Flower's replies and evaluations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from feddraw import catalog
from feddraw.aggregation import ClientUpdate, aggregate
from feddraw.server.method_check import MadeUpFederation

ANYTHING = {
    "zero": 0,
    "tiny": 1e-300,
    "smallest": 5e-324,
    "huge": 1e300,
    "negative": -1e9,
    "NaN": math.nan,
    "infinite": math.inf,
    "400 digits": 10**400,
    "65 bits": 2**64,
    "true": True,
    "text": "10",
    "bytes": b"x",
    "list": [1, 2],
    "empty": [],
    "ragged": [[1], [1, 2]],
    "table": {"a": 1},
    "nothing": None,
}
any_value = pytest.mark.parametrize("value", ANYTHING.values(), ids=ANYTHING)


def state_dict(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "first.weight": rng.normal(size=(3, 4)).astype(np.float32),
        "norm.running_mean": np.zeros(3, np.float32),
        "norm.running_var": np.ones(3, np.float32),
        "norm.num_batches_tracked": np.array(5),
        "classifier.weight": rng.normal(size=(2, 3)).astype(np.float32),
        "classifier.bias": np.zeros(2, np.float32),
    }


@any_value
@pytest.mark.parametrize("method", ["fedavg", "fednova", "qfedavg", "feddisco"])
def test_aggregate_goes_on_without_the_client_that_sends_something_else(method, value):
    sends = catalog.find("methods", method)().sends
    extra = {name: np.full(2 if extent == "findings" else 1, 0.5) for name, extent in sends.items()}
    honest = {"model": state_dict(1), "size": 10, "steps": 3, "extra": extra, "labelled": None}
    lies = [{**honest, name: value} for name in honest]
    lies += [{**honest, "extra": dict.fromkeys(sends, value)}]
    lies += [{**honest, "model": {**state_dict(1), name: value}} for name in state_dict(1)]
    wide = np.full(2, value) if isinstance(value, float) else value
    lies += [{**honest, "model": {**state_dict(1), "classifier.bias": wide}}]
    for lie in lies:
        liar = ClientUpdate(**lie, client="liar")
        others = [ClientUpdate(state_dict(number), 10, f"C{number}", 3, extra) for number in (2, 3)]
        result = aggregate(
            state_dict(0),
            [liar, *others],
            round=0,
            rounds=3,
            method=method,
            classifier="classifier",
        )
        assert {"C2", "C3"} <= result.weights.keys()
        assert all(np.isfinite(tensor).all() for tensor in result.next_model.values())
        (entry,) = [entry for entry in result.ledger if entry.client == "liar"]
        assert entry.weighted or entry.status.startswith("refused: ")


@any_value
def test_a_flower_reply_is_read_or_refused_whatever_stands_for_its_numbers(value):
    pytest.importorskip("flwr")
    from bad_replies import reply
    from feddraw.flower.metric_means import weighted_metric_means
    from feddraw.flower.reply_intake import ReplyFormat, decode_replies, named_reply

    made = MadeUpFederation.of(catalog.find("methods", "fedavg")())
    metrics = ("num-examples", "num-steps", "loss", "partition-id", "train-seconds", "other")
    places = [("metrics", key) for key in metrics]
    places += [("client", key) for key in ("number", "name", "labelled")]
    for record, key in places:
        content = reply(made.updates[1], "" if key == "partition-id" else "liar")
        try:
            content[record][key] = value
        except (TypeError, ValueError, KeyError):  # Flower itself does not take it
            continue
        received = named_reply(7, content)
        decoded = decode_replies(
            [received], {received.name: 1}, made.sent, ReplyFormat({}), keep=True
        )
        updates = [made.updates[0], *decoded.updates, *made.updates[2:]]
        result = made.together()(made.round(), updates)
        assert np.isfinite(result.next_model.params).all()
        assert result.ledger[0].weighted
        assert decoded.updates or received.name in decoded.refused
        weighted_metric_means([content, reply(made.updates[0], "C1")], "num-examples")


@any_value
def test_an_evaluation_of_anything_leaves_the_others_metrics(value):
    pytest.importorskip("flwr")
    from flwr.app import MetricRecord, RecordDict

    from feddraw.flower.score_histograms import BINS, merged_histogram_metrics
    from feddraw.tasks.findings import Findings

    counts = {"validation-places": [1, BINS + 2], "validation-counts": [5, 5]}
    honest = RecordDict({"metrics": MetricRecord({"num-examples": 10, **counts})})
    expected = merged_histogram_metrics([honest], ["a"], Findings()).validation.auc.macro
    assert expected == 1.0
    for key in ("validation-places", "validation-counts", "test-places", "test-counts"):
        for sent in (value, [value]):
            metrics = MetricRecord({"num-examples": 10, "validation-places": [3]})
            try:
                metrics[key] = sent
            except (TypeError, ValueError):
                continue
            contents = [honest, RecordDict({"metrics": metrics})]
            assert (
                merged_histogram_metrics(contents, ["a"], Findings()).validation.auc.macro
                == expected
            )


# ------------------------------------------------------------------------- models in the flat form

SENT = "classifier.bias of shape (2,) and type float32"


def flat_vector(dtype: str, values: np.ndarray) -> Any:
    """Another vector in the place of the one of this type."""
    from feddraw.flower.array_records import pack_array

    return lambda content: content["arrays"].update({dtype: pack_array(values)})


def flat_layout(change: Any) -> Any:
    """Another text in the place of the layout."""
    from feddraw.flower.array_records import pack_array, unpack_array
    from feddraw.flower.flat_models import LAYOUT

    def changed(content: Any) -> None:
        text = change(unpack_array(content["arrays"][LAYOUT]).tobytes())
        content["arrays"][LAYOUT] = pack_array(np.frombuffer(text, np.uint8))

    return changed


def flat_copies(content: Any) -> None:
    content["second"] = content["arrays"]


def much_beside_it(content: Any) -> None:
    from feddraw.flower.array_records import vectors_to_arrays

    content["more"] = vectors_to_arrays({"more": np.zeros(5 << 20, np.float32)})


def many_records_beside_it(content: Any) -> None:
    from flwr.app import MetricRecord

    content.update({f"metrics {number}": MetricRecord() for number in range(100)})


def flat_header(content: Any) -> None:
    """A vector whose header says more than its bytes hold."""
    from flwr.app import Array

    vector = content["arrays"]["float32"]
    claimed = vector.data.replace(b"(32,)", b"(99,)")
    content["arrays"]["float32"] = Array("float32", (32,), vector.stype, claimed)


HOSTILE_FLAT: dict[str, tuple[Callable[[], Any], str]] = {
    "NaN": (
        lambda: flat_vector("float32", np.full(32, np.nan, np.float32)),
        "refused: .* not finite",
    ),
    "too short": (
        lambda: flat_vector("float32", np.zeros(31, np.float32)),
        r"shape \(31,\) and 252 bytes where 32 numbers of type float32 were sent",
    ),
    "too long": (
        lambda: flat_vector("float32", np.zeros(10**6, np.float32)),
        "4,000,128 bytes where 32 numbers of type float32 were sent",
    ),
    "another type": (
        lambda: flat_vector("float32", np.zeros(32, np.float64)),
        "a vector of type float64, .* where 32 numbers of type float32 were sent",
    ),
    "a matrix": (
        lambda: flat_vector("float32", np.zeros((16, 2), np.float32)),
        r"shape \(16, 2\) .* where 32 numbers of type float32 were sent",
    ),
    "a header that claims more": (
        lambda: flat_header,
        "where 32 numbers of type float32 were sent",
    ),
    "one vector more": (
        lambda: flat_vector("float64\n", np.zeros(3)),
        "its flat model has an array 'float64' of no tensor",
    ),
    "no counters": (
        lambda: lambda content: content["arrays"].pop("int64"),
        "its flat model has no vector of int64",
    ),
    "much beside it": (lambda: much_beside_it, "20 MB of tensors, at most 16 MB are read"),
    "many records beside it": (lambda: many_records_beside_it, "has 102 records, at most 100"),
    "several flat models": (lambda: flat_copies, "2 flat models in one reply"),
    "another network": (
        lambda: flat_layout(lambda text: text.replace(b"classifier.bias", b"head.bias")),
        rf"another network: head.bias of shape \(2,\) and type float32 where {re.escape(SENT)}",
    ),
    "another shape": (
        lambda: flat_layout(lambda text: text.replace(b'"float32",[2]]', b'"float32",[2,1]]')),
        rf"classifier.bias of shape \(2, 1\) and type float32 where {re.escape(SENT)}",
    ),
    "a tensor less": (
        lambda: flat_layout(lambda text: text.partition(b',["classifier.bias"')[0] + b"]"),
        rf"no {re.escape(SENT)}, which was sent",
    ),
    "tensors that were not sent": (
        lambda: flat_layout(lambda text: text[:-1] + b',["more","bool",[1000000000]]]'),
        r"more of shape \(1000000000,\) and type bool, which was not sent",
    ),
    "a million tensors": (
        lambda: flat_layout(lambda _: b'[["a","bool",[0]]' + b',["a","bool",[0]]' * 10**6 + b"]"),
        "its layout has 17,000,018 bytes",
    ),
    "no layout": (lambda: flat_layout(lambda _: b"\xff" * 10), "layout .* cannot be read"),
    "a layout of depth": (lambda: flat_layout(lambda _: b"[" * 9000), "layout .* cannot be read"),
    "a layout of floats": (
        lambda: flat_vector("feddraw layout", np.zeros(3)),
        "the layout of its flat model is no text",
    ),
}


@pytest.mark.parametrize("how", HOSTILE_FLAT)
def test_a_hostile_flat_model_costs_its_own_update_and_is_refused_by_name(how):
    pytest.importorskip("flwr")
    from bad_replies import copied
    from feddraw.flower import FedDRAW, flat_mod
    from feddraw.flower.in_process_grid import FIRST_NODE
    from test_flat_models import Recorder, first_arrays, plain_app

    change, reason = HOSTILE_FLAT[how]

    def arrive(replies):
        for reply in replies:
            if reply.metadata.src_node_id == FIRST_NODE and reply.metadata.group_id == "2":
                reply.content = copied(reply.content)
                change()(reply.content)
        return replies

    grid = Recorder(plain_app(flat_mod), arrive=arrive)
    strategy = FedDRAW(min_available_nodes=4, fraction_evaluate=0.0)
    strategy.start(grid, first_arrays(), 3)
    statuses = {
        done.round: {entry.client: entry.status for entry in done.ledger}
        for done in strategy.history
    }
    assert re.search(reason, statuses[1].pop(f"node {FIRST_NODE}"))
    assert set(statuses[1].values()) == set(statuses[2].values()) == {"weighted"}
    assert np.isfinite(strategy.model.params).all()

"""Whatever stands in the place of a number, a client's message costs its own update at most: through
`feddraw.aggregate` and in Flower's replies and evaluations.
"""

from __future__ import annotations

import math

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

    counts = {"validation-places": [1, BINS + 2], "validation-counts": [5, 5]}
    honest = RecordDict({"metrics": MetricRecord({"num-examples": 10, **counts})})
    expected = merged_histogram_metrics([honest], ["a"]).validation.auc.macro
    assert expected == 1.0
    for key in ("validation-places", "validation-counts", "test-places", "test-counts"):
        for sent in (value, [value]):
            metrics = MetricRecord({"num-examples": 10, "validation-places": [3]})
            try:
                metrics[key] = sent
            except (TypeError, ValueError):
                continue
            contents = [honest, RecordDict({"metrics": metrics})]
            assert merged_histogram_metrics(contents, ["a"]).validation.auc.macro == expected

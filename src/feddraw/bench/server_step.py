"""The server's step beside the time that reading the updates once takes, Flower's sum and the usual loop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from feddraw.bench.ratios import Session, Timed, ratio, timed
from feddraw.core import Cohort, Entry, Layout, Method, Model, Update
from feddraw.methods.fedavg import fedavg
from feddraw.methods.feddraw import feddraw
from feddraw.server.round import aggregate_round

CLIENTS = 10
WIDE, LAYERS, FEATURES, CLASSES = 6_900_000, 364, 1024, 5  # about DenseNet121: seven million numbers


def names_of(clients: int) -> list[str]:
    return [f"C{number + 1}" for number in range(clients)]


def network(parameters: int = WIDE) -> Model:
    """A model of so many numbers in as many tensors as DenseNet121 has, the last two of which are the classifier's."""
    length = parameters // LAYERS
    entries = [Entry(f"body.{n}.weight", "param", (length,), n * length) for n in range(LAYERS)]
    entries.append(Entry("classifier.weight", "param", (CLASSES, FEATURES), LAYERS * length))
    entries.append(Entry("classifier.bias", "param", (CLASSES,), LAYERS * length + CLASSES * FEATURES))
    params = np.random.default_rng(0).standard_normal(entries[-1].span.stop, dtype=np.float32)
    return Model(params, np.zeros(0, np.float32), np.zeros(0, np.int64), Layout(tuple(entries), "classifier"))


def answers(sent: Model, clients: int) -> list[Update]:
    """Updates in one matrix, as the engines leave them."""
    matrix = np.empty((clients, len(sent.params)), np.float32)
    moves = np.random.default_rng(1).normal(1.0, 1e-3, clients)
    for row, move in zip(matrix, moves, strict=True):
        np.multiply(sent.params, np.float32(move), out=row)
    models = [replace(sent, params=row) for row in matrix]
    return [Update(i, model, 100 + i, 10, {"loss": 0.5}) for i, model in enumerate(models)]


def measure(session: Session, parameters: int = WIDE) -> dict[str, Any]:
    """Gate, weights and sum of ten updates ÷ reading them once; Flower's sum and a state-dict loop ÷ ours."""
    sent = network(parameters)
    updates = answers(sent, CLIENTS)
    works: dict[str, Timed] = {
        "floor": floor(updates),
        "fedavg": partial(step, fedavg(), sent, updates),
        "feddraw": partial(step, feddraw(), sent, updates),
        "sum": partial(summed, fedavg(), sent, updates),
        "naive": partial(naive, updates),
    }
    missing = {}
    try:
        works["flower"] = flower(updates)
    except ImportError as error:
        missing = {"missing": {"flower": str(error)}}
    samples = session.interleave(f"server: {CLIENTS} updates of {len(sent.params):,} parameters", works)
    beside = {"flower_sum_over_ours": ratio(samples["flower"], samples["sum"])} if "flower" in works else {}
    return {
        "title": f"{CLIENTS} updates of {len(sent.params) / 1e6:.1f} million parameters in {LAYERS + 2} tensors",
        "over_floor": {name: ratio(samples[name], samples["floor"]) for name in ("fedavg", "feddraw", "sum")},
        **beside,
        **missing,
        "naive_sum_over_ours": ratio(samples["naive"], samples["sum"]),
        "gigabytes_per_second": len(updates) * sent.params.nbytes / 1e9 / float(np.median(samples["floor"])),
        "milliseconds": {name: 1e3 * float(np.median(seconds)) for name, seconds in samples.items()},
    }


def floor(updates: Sequence[Update]) -> Timed:
    """Reading the updates once and doing next to nothing, with as many threads as our sums take.

    In few long calls: threads that return to Python often wait for one another, and the floor would be no floor.
    """
    count = min(8, os.cpu_count() or 1)
    rows = [update.model.params.view(np.int32) for update in updates]
    pieces, threads = [piece for row in rows for piece in np.array_split(row, count)], ThreadPoolExecutor(count)
    return lambda: timed(lambda: list(threads.map(np.bitwise_or.reduce, pieces)))


def step(method: Method, sent: Model, updates: Sequence[Update]) -> float:
    """All that a server does in a round: gate, weights, sum and ledger."""
    names, state = names_of(CLIENTS), method.init(sent)
    return timed(lambda: aggregate_round(4, 15, sent, method, state, updates, names))


def summed(method: Method, sent: Model, updates: Sequence[Update]) -> float:
    """Weights and sum, without the gate."""
    state = method.init(sent)
    return timed(lambda: method.aggregate(Cohort(4, 15, sent, updates, CLIENTS), state))


def naive(updates: Sequence[Update]) -> float:
    """The sum as it is often written: tensor by tensor, client by client."""
    state_dicts = [(update.size, update.model.arrays()) for update in updates]
    total = sum(size for size, _ in state_dicts)

    def work() -> None:
        for name in state_dicts[0][1]:
            sum(state[name] * (size / total) for size, state in state_dicts)

    return timed(work)


def flower(updates: Sequence[Update]) -> Timed:
    """Flower's own weighted sum, from the records that its messages carry."""
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    records = []
    for update in updates:
        arrays = ArrayRecord({name: Array(array) for name, array in update.model.arrays().items()})
        records.append(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": update.size})}))
    return lambda: timed(lambda: aggregate_arrayrecords(records, "num-examples"))

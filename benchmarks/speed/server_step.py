"""The server's step beside the time that reading the updates once takes, Flower's sum and the usual
loop.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from benchmarks.speed.made_up_model import (
    CLIENTS,
    LAYERS,
    WIDE_PARAMETERS,
    client_names,
    made_up_model,
    made_up_updates,
)
from benchmarks.speed.timing import Timed, TimingSession, ratio_of_times, seconds_of
from feddraw.core import Cohort, Method, Model, Update, Weighted
from feddraw.methods.fedavg import fedavg
from feddraw.methods.feddraw import feddraw
from feddraw.server.collectors import CohortSums, Together
from feddraw.server.round import Round


def measure_server_step(
    session: TimingSession, parameters: int = WIDE_PARAMETERS
) -> dict[str, Any]:
    """Gate, weights and sum of ten updates ÷ reading them once; Flower's sum and a state-dict loop
    ÷ ours.
    """
    sent = made_up_model(parameters)
    updates = made_up_updates(sent, CLIENTS)
    works: dict[str, Timed] = {
        "floor": reading_once(updates),
        "fedavg": partial(whole_server_step, fedavg(), sent, updates),
        "feddraw": partial(whole_server_step, feddraw(), sent, updates),
        "sum": partial(weights_and_sum, fedavg(), sent, updates),
        "naive": partial(state_dict_loop, updates),
    }
    missing: dict[str, str] = {}
    try:
        works["flower"] = flower_sum(updates)
    except ImportError as error:
        missing["flower"] = str(error)
    samples = session.interleave(
        f"server: {CLIENTS} updates of {len(sent.params):,} parameters", works
    )
    medians = {name: float(np.median(seconds)) for name, seconds in samples.items()}
    million = len(sent.params) / 1e6
    gigabytes = len(updates) * sent.params.nbytes / 1e9
    figures: dict[str, Any] = {
        "title": f"{CLIENTS} updates of {million:.1f} million parameters in {LAYERS + 2} tensors",
        "over_floor": {
            name: ratio_of_times(samples[name], samples["floor"])
            for name in ("fedavg", "feddraw", "sum")
        },
        "naive_sum_over_ours": ratio_of_times(samples["naive"], samples["sum"]),
        "gigabytes_per_second": gigabytes / medians["floor"],
        "milliseconds": {name: 1e3 * seconds for name, seconds in medians.items()},
    }
    if missing:
        figures["missing"] = missing
    else:
        figures["flower_sum_over_ours"] = ratio_of_times(samples["flower"], samples["sum"])
    return figures


def reading_once(updates: Sequence[Update]) -> Timed:
    """Reading the updates once and doing next to nothing, with as many threads as our sums take.

    In few long calls: threads that return to Python often wait for one another, and the floor would
    be no floor.
    """
    count = min(8, os.cpu_count() or 1)
    rows = [update.model.params.view(np.int32) for update in updates]
    pieces = [piece for row in rows for piece in np.array_split(row, count)]
    threads = ThreadPoolExecutor(count)
    return lambda: seconds_of(lambda: list(threads.map(np.bitwise_or.reduce, pieces)))


def whole_server_step(method: Method, sent: Model, updates: Sequence[Update]) -> float:
    """All that a server does in a round: gate, weights, sum and ledger."""
    round = Round(
        number=4,
        rounds=15,
        sent=sent,
        method=method,
        state=method.init(sent),
        clients=client_names(CLIENTS),
        sampled=range(CLIENTS),
    )
    return seconds_of(lambda: Together()(round, updates))


def weights_and_sum(method: Method, sent: Model, updates: Sequence[Update]) -> float:
    """Weights and sum, without the gate."""
    state = method.init(sent)
    rule = method.aggregation
    assert isinstance(rule, Weighted)
    cohort = Cohort(4, 15, sent, updates, CLIENTS)

    def aggregate() -> None:
        weights, _ = rule.weighting.weigh(cohort, state["weighting"])
        sums, _ = CohortSums.measured(rule, cohort, weights)
        sums.aggregate(rule.server, state)

    return seconds_of(aggregate)


def state_dict_loop(updates: Sequence[Update]) -> float:
    """The sum as it is often written: tensor by tensor, client by client."""
    state_dicts = [(update.size, update.model.arrays()) for update in updates]
    total = sum(size for size, _ in state_dicts)

    def work() -> None:
        for name in state_dicts[0][1]:
            sum(state[name] * (size / total) for size, state in state_dicts)

    return seconds_of(work)


def flower_sum(updates: Sequence[Update]) -> Timed:
    """Flower's own weighted sum, from the records that its messages carry."""
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    records = []
    for update in updates:
        arrays = ArrayRecord({name: Array(array) for name, array in update.model.arrays().items()})
        records.append(
            RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": update.size})})
        )
    return lambda: seconds_of(lambda: aggregate_arrayrecords(records, "num-examples"))

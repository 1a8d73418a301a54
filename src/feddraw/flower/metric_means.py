"""Means of the metrics that clients report with their replies, weighted by how many images they say
they have.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict

from feddraw.core import MOST_IMAGES
from feddraw.flower.reply_intake import EVALUATION_SECONDS, SECONDS, metrics_in_reply
from feddraw.text import safe_line

log = logging.getLogger("flwr")

# numbers of a reply that say nothing of the model
NO_METRICS = ("partition-id", SECONDS, EVALUATION_SECONDS)

LARGEST_MEANS = 1 << 17  # bytes of a round's means, which are kept for all rounds: numbers at 8

Values = list[tuple[float, Any]]  # a metric's values, each with the size of its client


def weighted_metric_means(contents: list[RecordDict], size_key: str) -> MetricRecord:
    """By metric, the mean over clients that report it with finite numbers, weighted by size; of
    lists, by number.
    """
    values_by_metric: dict[str, Values] = {}
    for content in contents:
        metrics = metrics_in_reply(content)
        size = _size(metrics, size_key)
        for name, value in metrics.items():
            values_by_metric.setdefault(name, []).append((size, value))
    kept = _metrics_to_keep(values_by_metric)
    means = MetricRecord()
    for name, values in values_by_metric.items():
        usable = _usable_values(name, values) if name in kept else []
        if usable and name not in (size_key, *NO_METRICS):
            sizes, numbers = zip(*usable, strict=True)
            floats = np.array(numbers, np.float64)  # numpy takes longer integers for objects
            means[name] = np.average(floats, axis=0, weights=sizes).tolist()
    return means


def _metrics_to_keep(values_by_metric: Mapping[str, Values]) -> set[str]:
    """As many as a round has room for, first those that most clients report."""
    by_clients = sorted(values_by_metric.items(), key=lambda item: len(item[1]), reverse=True)
    kept: set[str] = set()
    room = LARGEST_MEANS
    for name, values in by_clients:
        size = len(name) + 8 * max(_count(value) for _, value in values)
        if size <= room:
            kept.add(name)
            room -= size
    if left_out := len(values_by_metric) - len(kept):
        log.warning(
            "clients report more metrics than the %d kB that a round keeps: %d are left out",
            LARGEST_MEANS >> 10,
            left_out,
        )
    return kept


def _count(value: Any) -> int:
    return len(value) if isinstance(value, list) else 1


def _usable_values(name: str, values: Values) -> Values:
    """Those that are finite and of a client with a size; none where they are of several lengths."""
    finite = [(size, value) for size, value in values if size > 0 and _all_finite(value)]
    several_lengths = len({np.shape(value) for _, value in finite}) > 1
    if several_lengths:
        why = "lists of several lengths"
    else:
        why = f"{len(values) - len(finite)} not finite"
    if several_lengths or len(finite) < len(values):
        log.warning("%s of %d clients: %s, left out of the mean", safe_line(name), len(values), why)
    return [] if several_lengths else finite


def _all_finite(value: Any) -> bool:
    """Whether a number, or each of a list, is finite and no longer than a float can hold."""
    try:
        return bool(np.isfinite(np.asarray(value, np.float64)).all())
    except OverflowError:
        return False


def size_in_metrics(content: RecordDict, size_key: str) -> float:
    """How many images a client says that it has; 0 where that cannot be."""
    return _size(metrics_in_reply(content), size_key)


def _size(metrics: Mapping[str, Any], size_key: str) -> float:
    size = metrics.get(size_key, 0.0)
    return size if isinstance(size, int | float) and 0 < size <= MOST_IMAGES else 0.0

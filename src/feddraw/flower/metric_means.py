"""Means of the metrics that clients report with their replies, weighted by how many images they say
they have.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict

from feddraw.core import MOST_IMAGES
from feddraw.flower.reply_intake import SECONDS, metrics_in_reply
from feddraw.naming import safe_line

log = logging.getLogger("flwr")


def weighted_metric_means(contents: list[RecordDict], size_key: str) -> MetricRecord:
    """By metric, the mean over clients that report it with finite numbers, weighted by size; of
    lists, by number.
    """
    given: dict[str, list[tuple[float, Any]]] = {}
    for content in contents:
        for name, value in metrics_in_reply(content).items():
            given.setdefault(name, []).append((size_in_metrics(content, size_key), value))
    means = MetricRecord()
    for name, column in given.items():
        good = [(size, value) for size, value in column if np.isfinite(value).all() and size > 0]
        shapes = {np.shape(value) for _, value in good}
        if len(good) < len(column) or len(shapes) > 1:
            why = (
                "lists of several lengths"
                if len(shapes) > 1
                else f"{len(column) - len(good)} not finite"
            )
            log.warning(
                "%s of %d clients: %s, left out of the mean", safe_line(name), len(column), why
            )
        if len(shapes) == 1 and name not in (size_key, "partition-id", SECONDS):
            sizes, values = zip(*good, strict=True)
            means[name] = np.average(values, axis=0, weights=sizes).tolist()
    return means


def size_in_metrics(content: RecordDict, size_key: str) -> float:
    """How many images a client says that it has; 0 where that cannot be."""
    size = metrics_in_reply(content).get(size_key, 0.0)
    return size if isinstance(size, int | float) and 0 < size <= MOST_IMAGES else 0.0

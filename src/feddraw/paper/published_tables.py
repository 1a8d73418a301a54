"""The paper's published numbers as data, and its own analysis of them.

The tables are those of M. Moradpour and A.-C. Hauschild, FedDRAW (preprint); see `paper/README.md`.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from feddraw.analysis.statistics import Comparison, Table, compare, tabulate
from feddraw.text import grouped

METRICS = {"auc": "AUC", "gm": "GM"}
PAPER_ALPHA = 0.10  # the paper's
OURS = "FedDRAW"

Comparisons = Mapping[str, Comparison]  # by metric


@cache
def read_published(name: str) -> tuple[dict[str, str], ...]:
    """The rows of one of the published tables."""
    text = (files("feddraw") / "paper" / f"{name}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def published_results(metric: str, column: str = "mean") -> Table:
    """Tables 4 and 5: the mean (or "std") over five runs, in percent."""
    rows = read_published("results_auc_gm")
    return tabulate(
        (row["scenario"], row["method"], float(row[f"{metric}_{column}"])) for row in rows
    )


def printed_ranks(metric: str) -> Table:
    """Table 6."""
    return tabulate(
        (row["scenario"], row["method"], float(row[f"{metric}_rank"]))
        for row in read_published("ranks")
    )


def client_sizes() -> dict[str, list[int]]:
    """Tables 2 and 3: images of each client, by scenario."""
    return grouped((row["scenario"], int(row["n_samples"])) for row in read_published("scenarios"))


def published_comparisons(alpha: float = PAPER_ALPHA) -> dict[str, Comparison]:
    """The paper's analysis of both metrics, from its means."""
    return {metric: compare(published_results(metric), alpha=alpha) for metric in METRICS}

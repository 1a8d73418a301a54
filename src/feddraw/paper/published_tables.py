"""The paper's published numbers as data, what can be recomputed from them, and what they do and do not show.

The tables are those of M. Moradpour and A.-C. Hauschild, FedDRAW (preprint); see `paper/README.md`. Every sentence
here stands on a number computed from them.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from feddraw.analysis.statistics import Comparison, Table, compare, critical_value, tabulate
from feddraw.grouping import grouped
from feddraw.paper.weight_claims import WeightClaim

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
    return tabulate((row["scenario"], row["method"], float(row[f"{metric}_{column}"])) for row in rows)


def printed_ranks(metric: str) -> Table:
    """Table 6."""
    return tabulate((row["scenario"], row["method"], float(row[f"{metric}_rank"])) for row in read_published("ranks"))


def client_sizes() -> dict[str, list[int]]:
    """Tables 2 and 3: images of each client, by scenario."""
    return grouped((row["scenario"], int(row["n_samples"])) for row in read_published("scenarios"))


def published_claims() -> list[WeightClaim]:
    """What the text says about the weights over the rounds."""
    return [WeightClaim(**row) for row in read_published("dynamics_claims")]


def published_comparisons(alpha: float = PAPER_ALPHA) -> dict[str, Comparison]:
    """The paper's analysis of both metrics, from its means."""
    return {metric: compare(published_results(metric), alpha=alpha) for metric in METRICS}


@dataclass(frozen=True)
class PrintedCheck:
    """A printed statement beside the recomputed one."""

    metric: str  # "auc", "gm" or "both"
    quantity: str
    printed: str
    computed: str

    @property
    def agrees(self) -> bool:
        return self.printed == self.computed


def check_printed_numbers(found: Comparisons) -> list[PrintedCheck]:
    """All printed statistics, to their printed digits."""
    return [*_check_average_ranks(found), *_check_statistics(found), *_check_counts(found)]


def _check_statistics(found: Comparisons) -> list[PrintedCheck]:
    checks = []
    for row in read_published("statistics_printed"):
        computed = _recomputed(row["quantity"], found[row["metric"]])
        text = computed if isinstance(computed, str) else _with_printed_decimals(row["value"], computed)
        checks.append(PrintedCheck(row["metric"], row["quantity"], _names_sorted(row["value"]), _names_sorted(text)))
    return checks


def _recomputed(quantity: str, comparison: Comparison) -> float | str:
    average = comparison.average_ranks
    known: dict[str, float | str] = {
        "chi-square": comparison.friedman.statistic,
        "degrees of freedom": comparison.friedman.degrees,
        "critical value q": critical_value(len(average), comparison.alpha),
        "critical difference": comparison.difference,
        f"{OURS} is first in": comparison.first_places[OURS],
        "next-best average rank": sorted(average.values())[1],
        f"{OURS} significantly better than": " ".join(comparison.beaten_by(OURS)),
    }
    return known[quantity]


def _check_average_ranks(found: Comparisons) -> list[PrintedCheck]:
    return [
        PrintedCheck(
            metric,
            f"average rank of {row['method']}",
            f"{float(row[f'{metric}_avg_rank']):.2f}",
            f"{comparison.average_ranks[row['method']]:.2f}",
        )
        for metric, comparison in found.items()
        for row in read_published("ranks_average_printed")
    ]


def _check_counts(found: Comparisons) -> list[PrintedCheck]:
    """Tables of many numbers, each as one line: how many of them agree."""
    ranks = [found[metric].ranks == printed_ranks(metric).values for metric in METRICS]
    best = [
        (row[f"{metric}_bold"] == "1") == (rank == 1)
        for metric in METRICS
        for row, rank in zip(read_published("results_bold_flags"), found[metric].ranks.flat, strict=True)
    ]
    gains = [
        _with_printed_decimals(row["value"], _recomputed_difference(row)) == row["value"]
        for row in read_published("differences_printed")
    ]
    counts: dict[str, Any] = {"ranks of Table 6": ranks, "values in bold": best, "quoted differences": gains}
    return [PrintedCheck("both", what, str(np.size(good)), str(int(np.sum(good)))) for what, good in counts.items()]


def _recomputed_difference(row: Mapping[str, str]) -> float:
    """FedDRAW minus the named method, or the best of the others."""
    values = published_results(row["metric"]).rows()[row["scenario"]]
    ours = values.pop(OURS)
    return float(ours - (max(values.values()) if row["against"] == "best" else values[row["against"]]))


def _with_printed_decimals(printed: str, value: float) -> str:
    return f"{value:.{len(printed.partition('.')[2])}f}"


def _names_sorted(text: str) -> str:
    """Names in one order, so that lists can be compared."""
    return ", ".join(sorted(text.split()))

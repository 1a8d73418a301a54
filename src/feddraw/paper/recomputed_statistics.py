"""The paper's printed statistics beside those recomputed from its own tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from feddraw.analysis.statistics import Comparison, critical_value
from feddraw.paper.published_tables import (
    METRICS,
    OURS,
    Comparisons,
    printed_ranks,
    published_results,
    read_published,
)


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
        text = (
            computed
            if isinstance(computed, str)
            else _with_printed_decimals(row["value"], computed)
        )
        checks.append(
            PrintedCheck(
                row["metric"], row["quantity"], _names_sorted(row["value"]), _names_sorted(text)
            )
        )
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
        for row, rank in zip(
            read_published("results_bold_flags"), found[metric].ranks.flat, strict=True
        )
    ]
    gains = [
        _with_printed_decimals(row["value"], _recomputed_difference(row)) == row["value"]
        for row in read_published("differences_printed")
    ]
    counts: dict[str, Any] = {
        "ranks of Table 6": ranks,
        "values in bold": best,
        "quoted differences": gains,
    }
    return [
        PrintedCheck("both", what, str(np.size(good)), str(int(np.sum(good))))
        for what, good in counts.items()
    ]


def _recomputed_difference(row: Mapping[str, str]) -> float:
    """FedDRAW minus the named method, or the best of the others."""
    values = published_results(row["metric"]).rows()[row["scenario"]]
    ours = values.pop(OURS)
    return float(
        ours - (max(values.values()) if row["against"] == "best" else values[row["against"]])
    )


def _with_printed_decimals(printed: str, value: float) -> str:
    return f"{value:.{len(printed.partition('.')[2])}f}"


def _names_sorted(text: str) -> str:
    """Names in one order, so that lists can be compared."""
    return ", ".join(sorted(text.split()))

"""The paper's printed statistics beside those recomputed from its own tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


def check_printed_numbers(comparisons: Comparisons) -> list[PrintedCheck]:
    """All printed statistics, to their printed digits."""
    return [
        *_check_average_ranks(comparisons),
        *_check_statistics(comparisons),
        *_check_counts(comparisons),
    ]


def _check_statistics(comparisons: Comparisons) -> list[PrintedCheck]:
    checks = []
    for row in read_published("statistics_printed"):
        printed = row["value"]
        computed = _recomputed(row["quantity"], comparisons[row["metric"]])
        if not isinstance(computed, str):
            computed = _with_printed_decimals(printed, computed)
        checks.append(
            PrintedCheck(
                metric=row["metric"],
                quantity=row["quantity"],
                printed=_names_sorted(printed),
                computed=_names_sorted(computed),
            )
        )
    return checks


def _recomputed(quantity: str, comparison: Comparison) -> float | str:
    """What the paper prints under this name, from its own means."""
    average = comparison.average_ranks
    quantities: dict[str, float | str] = {
        "chi-square": comparison.friedman.statistic,
        "degrees of freedom": comparison.friedman.degrees,
        "critical value q": critical_value(len(average), comparison.alpha),
        "critical difference": comparison.difference,
        f"{OURS} is first in": comparison.first_places[OURS],
        "next-best average rank": sorted(average.values())[1],
        f"{OURS} significantly better than": " ".join(comparison.beaten_by(OURS)),
    }
    return quantities[quantity]


def _check_average_ranks(comparisons: Comparisons) -> list[PrintedCheck]:
    checks = []
    for metric, comparison in comparisons.items():
        for row in read_published("ranks_average_printed"):
            method = row["method"]
            checks.append(
                PrintedCheck(
                    metric=metric,
                    quantity=f"average rank of {method}",
                    printed=f"{float(row[f'{metric}_avg_rank']):.2f}",
                    computed=f"{comparison.average_ranks[method]:.2f}",
                )
            )
    return checks


def _check_counts(comparisons: Comparisons) -> list[PrintedCheck]:
    """Tables of many numbers, each as one line: how many of them agree."""
    ranks = []
    best = []
    for metric in METRICS:
        computed = comparisons[metric].ranks
        ranks += (computed == printed_ranks(metric).values).ravel().tolist()
        bold = [row[f"{metric}_bold"] == "1" for row in read_published("results_bold_flags")]
        best += [is_bold == (rank == 1) for is_bold, rank in zip(bold, computed.flat, strict=True)]
    differences = [
        _with_printed_decimals(row["value"], _recomputed_difference(row)) == row["value"]
        for row in read_published("differences_printed")
    ]
    agreements = {
        "ranks of Table 6": ranks,
        "values in bold": best,
        "quoted differences": differences,
    }
    return [
        PrintedCheck("both", quantity, printed=str(len(agree)), computed=str(sum(agree)))
        for quantity, agree in agreements.items()
    ]


def _recomputed_difference(row: Mapping[str, str]) -> float:
    """FedDRAW minus the named method, or the best of the others."""
    values = published_results(row["metric"]).rows()[row["scenario"]]
    ours = values.pop(OURS)
    other = max(values.values()) if row["against"] == "best" else values[row["against"]]
    return float(ours - other)


def _with_printed_decimals(printed: str, value: float) -> str:
    return f"{value:.{len(printed.partition('.')[2])}f}"


def _names_sorted(text: str) -> str:
    """Names in one order, so that lists can be compared."""
    return ", ".join(sorted(text.split()))

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

import numpy as np

from feddraw.analysis.statistics import Comparison, Table, compare, critical_value, tabulate
from feddraw.grouping import grouped
from feddraw.paper.weight_claims import Claim

METRICS = {"auc": "AUC", "gm": "GM"}
ALPHA = 0.10  # the paper's
OURS = "FedDRAW"

Comparisons = Mapping[str, Comparison]  # by metric


# ---------------------------------------------------------------------------------------------------- the tables


@cache
def read(name: str) -> tuple[dict[str, str], ...]:
    """The rows of one of the published tables."""
    text = (files("feddraw") / "paper" / f"{name}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def results(metric: str, column: str = "mean") -> Table:
    """Tables 4 and 5: the mean (or "std") over five runs, in percent."""
    rows = read("results_auc_gm")
    return tabulate((row["scenario"], row["method"], float(row[f"{metric}_{column}"])) for row in rows)


def printed_ranks(metric: str) -> Table:
    """Table 6."""
    return tabulate((row["scenario"], row["method"], float(row[f"{metric}_rank"])) for row in read("ranks"))


def client_sizes() -> dict[str, list[int]]:
    """Tables 2 and 3: images of each client, by scenario."""
    return grouped((row["scenario"], int(row["n_samples"])) for row in read("scenarios"))


def claims() -> list[Claim]:
    """What the text says about the weights over the rounds."""
    return [Claim(**row) for row in read("dynamics_claims")]


def comparisons(alpha: float = ALPHA) -> dict[str, Comparison]:
    """The paper's analysis of both metrics, from its means."""
    return {metric: compare(results(metric), alpha=alpha) for metric in METRICS}


# ---------------------------------------------------------------------------------------------------- recomputed


@dataclass(frozen=True)
class Check:
    """A printed statement beside the recomputed one."""

    metric: str  # "auc", "gm" or "both"
    quantity: str
    printed: str
    computed: str

    @property
    def agrees(self) -> bool:
        return self.printed == self.computed


def checks(found: Comparisons) -> list[Check]:
    """All printed statistics, to their printed digits."""
    return [*_average_ranks(found), *_statistics(found), *_counts(found)]


def _statistics(found: Comparisons) -> list[Check]:
    found_checks = []
    for row in read("statistics_printed"):
        computed = _computed(row["quantity"], found[row["metric"]])
        text = computed if isinstance(computed, str) else _like(row["value"], computed)
        found_checks.append(Check(row["metric"], row["quantity"], _in_order(row["value"]), _in_order(text)))
    return found_checks


def _computed(quantity: str, comparison: Comparison) -> float | str:
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


def _average_ranks(found: Comparisons) -> list[Check]:
    return [
        Check(
            metric,
            f"average rank of {row['method']}",
            f"{float(row[f'{metric}_avg_rank']):.2f}",
            f"{comparison.average_ranks[row['method']]:.2f}",
        )
        for metric, comparison in found.items()
        for row in read("ranks_average_printed")
    ]


def _counts(found: Comparisons) -> list[Check]:
    """Tables of many numbers, each as one line: how many of them agree."""
    ranks = [found[metric].ranks == printed_ranks(metric).values for metric in METRICS]
    best = [
        (row[f"{metric}_bold"] == "1") == (rank == 1)
        for metric in METRICS
        for row, rank in zip(read("results_bold_flags"), found[metric].ranks.flat, strict=True)
    ]
    gains = [_like(row["value"], _difference(row)) == row["value"] for row in read("differences_printed")]
    counts = {
        "ranks of Table 6": np.array(ranks),
        "values in bold": np.array(best),
        "quoted differences": np.array(gains),
    }
    return [Check("both", what, str(good.size), str(int(good.sum()))) for what, good in counts.items()]


def _difference(row: Mapping[str, str]) -> float:
    """FedDRAW minus the named method, or the best of the others."""
    values = results(row["metric"]).rows()[row["scenario"]]
    ours = values.pop(OURS)
    return float(ours - (max(values.values()) if row["against"] == "best" else values[row["against"]]))


def _like(printed: str, value: float) -> str:
    """With as many decimals as the printed one."""
    return f"{value:.{len(printed.partition('.')[2])}f}"


def _in_order(text: str) -> str:
    """Names in one order, so that lists can be compared."""
    return ", ".join(sorted(text.split()))

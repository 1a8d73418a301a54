"""The tables and the figure of docs/contribution.md, from docs/data/contribution-*.csv alone.

python -m benchmarks.contribution_study tables     prints them
python -m benchmarks.contribution_study_tables     writes docs/images/contribution-study.svg
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from benchmarks.contribution_study import (
    CONDITIONS,
    DATA,
    ESTIMATORS,
    SITES,
    Row,
    read_rows,
)
from feddraw.analysis.palette import SERIES
from feddraw.analysis.plots import LINE_GREY, draw_legend, figure_style, save_figure

Floats = NDArray[np.float64]

FIGURE = DATA.parent / "images" / "contribution-study.svg"
FALSE_ALARMS = 0.05  # of the power's threshold
SURE = 1.96  # standard errors over patients: what one training's interval would say
NAMES = {
    "retrained": "leave-one-out by retraining",
    "rounds": "leave-one-out by round",
    "shapley": "Shapley value by round",
    "cosine": "cosine of the move",
}
# By row of the table: the condition, and whether the AUC of the rare finding is looked at.
FAULTS = {
    "30 % wrong labels": ("wrong labels", False),
    "blurred": ("blurred", False),
    "copy of another": ("copy", False),
    "sends nothing new": ("empty", False),
    "small, rare finding": ("rare", False),
    "the same, AUC of that finding": ("rare", True),
}


@dataclass(frozen=True)
class Share:
    """A share of the splits, with Clopper and Pearson's 95 % interval."""

    count: int
    of: int

    @property
    def value(self) -> float:
        return self.count / self.of

    @property
    def interval(self) -> tuple[float, float]:
        exact = stats.binomtest(self.count, self.of).proportion_ci(method="exact")
        return float(exact.low), float(exact.high)

    @property
    def text(self) -> str:
        low, high = self.interval
        return f"{self.value:.2f} ({low:.2f} to {high:.2f})"

    @property
    def verdict(self) -> str:
        """As registered."""
        low, _ = self.interval
        if low >= 0.5:
            return "finds"
        return "sometimes" if low > FALSE_ALARMS else "not shown"


def complete(rows: Sequence[Row]) -> list[Row]:
    """The rows of splits that are there under every condition, with numbers only."""
    unusable = {row.split for row in rows if not np.isfinite(numbers(row.values)).all()}
    done = {
        split: {row.condition for row in rows if row.split == split} for split in splits_of(rows)
    }
    whole = {split for split, conditions in done.items() if conditions == set(CONDITIONS)}
    return [row for row in rows if row.split in whole - unusable]


def splits_of(rows: Sequence[Row]) -> set[int]:
    return {row.split for row in rows}


def numbers(text: str) -> Floats:
    return np.array([float(number) for number in text.split()])


def marked_of(row: Row) -> list[int]:
    return [int(number) for number in row.marked.split()]


def values_of(row: Row, rare: bool) -> Floats:
    return numbers(row.of_rare if rare else row.values)


def statistic(values: Floats, marked: Sequence[int]) -> float:
    """The mean of some sites minus the mean of the others."""
    inside = np.isin(np.arange(len(values)), list(marked))
    return float(values[inside].mean() - values[~inside].mean())


def chosen(rows: Sequence[Row], condition: str, estimator: str) -> list[Row]:
    return [row for row in rows if (row.condition, row.estimator) == (condition, estimator)]


def null_statistics(rows: Sequence[Row], condition: str, estimator: str, rare: bool) -> Floats:
    """What the statistic is where nothing is wrong: at every site (or pair of neighbours, for a
    copy) of five alike, or at a small site that has its share of the rare finding.
    """
    if condition == "rare":
        of_small = chosen(rows, "small", estimator)
        return np.array([statistic(values_of(row, rare), marked_of(row)) for row in of_small])
    together = 2 if condition == "copy" else 1
    sets = [[(first + step) % SITES for step in range(together)] for first in range(SITES)]
    none = chosen(rows, "none", estimator)
    return np.array([statistic(values_of(row, rare), sites) for row in none for sites in sets])


def power(rows: Sequence[Row], condition: str, estimator: str, rare: bool = False) -> Share:
    """Of the splits, those whose statistic is beyond all but 5 % of those where nothing is wrong:
    below for a fault, above for a rare finding.
    """
    sign = -1.0 if condition == "rare" else 1.0
    null = sign * null_statistics(rows, condition, estimator, rare)
    threshold = np.quantile(null, FALSE_ALARMS, method="lower")
    found = [
        sign * statistic(values_of(row, rare), marked_of(row)) < threshold
        for row in chosen(rows, condition, estimator)
    ]
    return Share(sum(found), len(found))


def at_the_end(rows: Sequence[Row], condition: str, estimator: str, rare: bool = False) -> Share:
    """Of the splits, those in which the site (or one of the two) comes last; first, if it has the
    rare finding.
    """
    found = []
    for row in chosen(rows, condition, estimator):
        values = values_of(row, rare)
        extreme = values.argmax() if condition == "rare" else values.argmin()
        found.append(int(extreme) in marked_of(row))
    return Share(sum(found), len(found))


def said_of_one_training(rows: Sequence[Row], condition: str, estimator: str) -> Share:
    """Of the splits, those in which the interval over patients of the site minus the others' mean
    excludes 0 in the right direction; of `none`, of all sites, in any direction.
    """
    found = []
    for row in chosen(rows, condition, estimator):
        values, errors = numbers(row.values), numbers(row.errors)
        others = (values.sum() - values) / (len(values) - 1)
        ratios = np.divide(values - others, errors, out=np.zeros(len(values)), where=errors > 0)
        if condition == "none":
            found += (np.abs(ratios) > SURE).tolist()
        else:
            ratio = ratios[marked_of(row)[0]]
            found.append(bool(ratio > SURE if condition == "rare" else ratio < -SURE))
    return Share(sum(found), len(found))


def power_table(rows: Sequence[Row]) -> str:
    lines = ["| fault | estimator | power at 5 % | last (first, if rare) | interval | verdict |"]
    lines.append("|---|---|---|---|---|---|")
    for name, (condition, rare) in FAULTS.items():
        for estimator in ESTIMATORS:
            if rare and estimator == "cosine":
                continue
            found = power(rows, condition, estimator, rare)
            end = at_the_end(rows, condition, estimator, rare)
            said = "" if rare or estimator == "cosine" else _said(rows, condition, estimator)
            cells = [name, NAMES[estimator], found.text, f"{end.value:.2f}", said, found.verdict]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _said(rows: Sequence[Row], condition: str, estimator: str) -> str:
    return f"{said_of_one_training(rows, condition, estimator).value:.2f}"


def false_alarm_table(rows: Sequence[Row]) -> str:
    lines = ["| estimator | intervals of one training that exclude 0 though nothing is wrong |"]
    lines.append("|---|---|")
    for estimator in ESTIMATORS[:3]:
        lines.append(
            f"| {NAMES[estimator]} | {said_of_one_training(rows, 'none', estimator).text} |"
        )
    return "\n".join(lines)


def cost_table(rows: Sequence[Row], natural: Sequence[Row]) -> str:
    lines = ["| estimator | five sites | eight natural sites |", "|---|---|---|"]
    for estimator in ESTIMATORS:
        cells = [
            f"{np.mean([row.seconds for row in table if row.estimator == estimator]):.2f} s"
            for table in (rows, natural)
        ]
        lines.append(f"| {NAMES[estimator]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def agreement(natural: Sequence[Row], estimator: str) -> Floats:
    """By split, Spearman's correlation of the sites' values with those by retraining."""
    retrained = {row.split: numbers(row.values) for row in chosen(natural, "natural", "retrained")}
    return np.array(
        [
            stats.spearmanr(retrained[row.split], numbers(row.values)).statistic
            for row in chosen(natural, "natural", estimator)
        ]
    )


def stability(natural: Sequence[Row], estimator: str) -> float:
    """Kendall's W of the sites' ranks over splits."""
    ranks = np.array(
        [stats.rankdata(numbers(row.values)) for row in chosen(natural, "natural", estimator)]
    )
    splits, sites = ranks.shape
    sums = ranks.sum(axis=0)
    return float(12 * ((sums - sums.mean()) ** 2).sum() / (splits**2 * (sites**3 - sites)))


def correlation_of_means(natural: Sequence[Row], estimator: str) -> float:
    """Spearman's correlation of the means over splits."""
    means = [
        np.mean([numbers(row.values) for row in chosen(natural, "natural", name)], axis=0)
        for name in ("retrained", estimator)
    ]
    return float(stats.spearmanr(*means).statistic)


def agreement_table(natural: Sequence[Row]) -> str:
    lines = [
        "| estimator | rank correlation with retraining, by split | of the means | W over splits |"
    ]
    lines.append("|---|---|---|---|")
    for estimator in ESTIMATORS:
        by_split = agreement(natural, estimator)
        half = stats.t.ppf(0.975, len(by_split) - 1) * by_split.std(ddof=1) / len(by_split) ** 0.5
        mean = by_split.mean()
        spread = f"{mean:.2f} ({mean - half:.2f} to {mean + half:.2f})"
        of_means = f"{correlation_of_means(natural, estimator):.2f}"
        if estimator == "retrained":
            spread = of_means = "1"
        lines.append(
            f"| {NAMES[estimator]} | {spread} | {of_means} | {stability(natural, estimator):.2f} |"
        )
    return "\n".join(lines)


def all_tables(folder: Path) -> str:
    rows = complete(read_rows("run", folder))
    natural = read_rows("natural", folder)
    splits = [len(splits_of(table)) for table in (rows, natural)]
    tables = [f"{splits[0]} splits, {splits[1]} of the natural sites"]
    if rows:
        tables += [power_table(rows), false_alarm_table(rows)]
    if natural:
        tables.append(agreement_table(natural))
    if rows and natural:
        tables.append(cost_table(rows, natural))
    return "\n\n".join(tables)


def study_figure(rows: Sequence[Row]) -> Figure:
    """The power of each estimator for each fault."""
    with figure_style():
        figure = Figure(figsize=(6.8, 3.9), layout="constrained")
        axes = figure.subplots()
        for place, estimator in enumerate(ESTIMATORS):
            labelled = False
            for line, (condition, rare) in enumerate(FAULTS.values()):
                if rare and estimator == "cosine":
                    continue
                found = power(rows, condition, estimator, rare)
                height = line + 0.17 * (place - 1.5)
                axes.plot(found.interval, [height] * 2, color=SERIES[place], linewidth=1.4)
                axes.plot(
                    found.value,
                    height,
                    "o",
                    color=SERIES[place],
                    markersize=5,
                    label="_" if labelled else NAMES[estimator],
                )
                labelled = True
        axes.axvline(FALSE_ALARMS, color=LINE_GREY, linewidth=0.8, zorder=0)
        axes.set_yticks(range(len(FAULTS)), list(FAULTS), fontsize=8)
        axes.set_ylim(len(FAULTS) - 0.4, -0.6)
        axes.set_xlim(-0.02, 1.02)
        axes.set_xlabel(
            "share of splits in which the site is found, at 5 % false alarms", fontsize=8
        )
        draw_legend(
            axes, [line for line in axes.lines if not str(line.get_label()).startswith("_")]
        )
    return figure


if __name__ == "__main__":
    save_figure(study_figure(complete(read_rows("run"))), FIGURE)

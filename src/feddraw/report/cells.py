"""Cells that several tables of a report share, and the note that says what is in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from feddraw.analysis.bootstrap import Interval
from feddraw.analysis.paired_differences import Difference
from feddraw.analysis.statistics_in_words import interval_in_brackets
from feddraw.report.blocks import Cell
from feddraw.report.runs import REFERENCES, RunCollection
from feddraw.report.statistics import MeanOverRepeats


def number_cell(value: float, form: str = ".4f") -> Cell:
    """A number, or that there is none."""
    return Cell(format(value, form), value) if math.isfinite(value) else Cell("undefined")


def interval_cell(interval: Interval | Difference | None) -> Cell:
    """An interval, sorted by its lower end; empty where there is none."""
    return Cell("") if interval is None else Cell(interval_in_brackets(interval), interval.low)


def difference_cells(difference: Interval) -> list[Cell]:
    """A difference over patients, and its interval."""
    return [number_cell(difference.estimate, "+.4f"), interval_cell(difference)]


def mean_cell(mean: MeanOverRepeats, *, most_runs: int, best: bool = False) -> Cell:
    """Mean and spread; how many repeats where others in the column, with `most_runs`, have more."""
    if not mean.runs:
        return Cell("not run")
    if not mean.count:
        return Cell("undefined")
    text = f"{mean.value:.4f}"
    if math.isfinite(mean.spread):
        text += f" ± {mean.spread:.4f}"
    if mean.count < mean.runs:
        text += f" (n = {mean.count}, undefined in {mean.runs - mean.count})"
    elif mean.count < most_runs:
        text += f" (n = {mean.count})"
    return Cell(text, mean.value, best)


def column_cells(means: Mapping[str, MeanOverRepeats], ranked: Sequence[str]) -> dict[str, Cell]:
    """Means of one column by method, the best of the ranked methods marked."""
    values = [means[method].value for method in ranked if method in means]
    best = max((value for value in values if math.isfinite(value)), default=math.nan)
    most_runs = max((mean.runs for mean in means.values()), default=0)
    return {
        method: mean_cell(mean, most_runs=most_runs, best=method in ranked and mean.value == best)
        for method, mean in means.items()
    }


def note_on_means(collection: RunCollection) -> str:
    """What the means of a table are, and what stands below them for reference."""
    sentences = ["* best mean of the column."]
    if collection.references:
        names = {name.split(" ")[0] for name in collection.references}
        sentences += [f"{name}: {REFERENCES[name]}." for name in sorted(names)]
        sentences.append("References are not ranked.")
    if len({run.repeat for run in collection.runs}) == 1:
        sentences.append("One run per method: a difference may be noise between trainings.")
    else:
        sentences.append(
            "Mean ± standard deviation over seeds (ddof 1); n is given where a cell has fewer runs"
            " than others."
        )
    return " ".join(sentences)

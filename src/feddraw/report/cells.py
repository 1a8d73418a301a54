"""Cells that several tables of a report share, and the note that says what is in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from feddraw.analysis.bootstrap import Interval
from feddraw.analysis.paired_differences import Difference
from feddraw.analysis.paired_repeats import paired_repeats_in_words
from feddraw.analysis.statistics_in_words import interval_in_brackets
from feddraw.report.blocks import Cell
from feddraw.report.runs import REFERENCES
from feddraw.report.statistics import MeanOverRepeats, Report

NOTE_ON_STAR = "* best mean of the column; none where the best are printed alike."


def number_cell(value: float, form: str = ".4f") -> Cell:
    """A number, or that there is none."""
    return Cell(format(value, form), value) if math.isfinite(value) else Cell("undefined")


def interval_cell(interval: Interval | Difference | None) -> Cell:
    """An interval, sorted by its lower end; empty where there is none."""
    return Cell("") if interval is None else Cell(interval_in_brackets(interval), interval.low)


def difference_cells(difference: Interval) -> list[Cell]:
    """A difference over patients, and its interval."""
    return [number_cell(difference.estimate, "+.4f"), interval_cell(difference)]


def mean_cell(mean: MeanOverRepeats, *, most_repeats: int, best: bool = False) -> Cell:
    """Mean and spread; how many repeats where others in the column, with `most_repeats`, have
    more.
    """
    if not mean.runs:
        return Cell("not run")
    if not mean.count:
        return Cell("not paired" if mean.uncounted else "undefined")
    text = f"{mean.value:.4f}"
    if math.isfinite(mean.spread):
        text += f" ± {mean.spread:.4f}"
    if mean.count < most_repeats:
        text += f" (n = {mean.count})"
    return Cell(text, mean.value, best)


def column_cells(means: Mapping[str, MeanOverRepeats], ranked: Sequence[str]) -> dict[str, Cell]:
    """Means of one column by method, the best of the ranked methods marked: those with a mean are
    over the same repeats.
    """
    best = method_above_others(
        {method: mean.value for method, mean in means.items() if method in ranked}
    )
    most_repeats = max((mean.count for mean in means.values()), default=0)
    cells = {}
    for method, mean in means.items():
        cells[method] = mean_cell(mean, most_repeats=most_repeats, best=method == best)
    return cells


def method_above_others(values: Mapping[str, float]) -> str | None:
    """The method whose value, as a table prints it, is above those of all others; none where there
    is one method only, or several share the highest value.
    """
    printed = {method: round(value, 4) for method, value in values.items() if math.isfinite(value)}
    highest = [method for method, value in printed.items() if value == max(printed.values())]
    return highest[0] if len(highest) == 1 and len(printed) > 1 else None


def note_on_means(report: Report, metric: str, scenarios: Sequence[str]) -> str:
    """What the means of a table are, and what stands below them for reference."""
    collection = report.collection
    counts = [len(report.pairing(scenario, metric).repeats) for scenario in scenarios]
    compared = len(report.methods) > 1 and any(counts)
    sentences = [NOTE_ON_STAR] if compared else []
    if collection.references:
        names = {name.split(" ")[0] for name in collection.references}
        sentences += [f"{name}: {REFERENCES[name]}." for name in sorted(names)]
        sentences.append("References are not ranked.")
    paired = paired_repeats_in_words(counts)
    if max(counts, default=0) > 1:
        sentences.append(
            f"Mean ± standard deviation (ddof 1) over the seeds that all methods have ({paired}); n"
            " is given where a reference has fewer."
        )
    elif compared:
        sentences.append(f"{paired.capitalize()}: a difference may be noise between trainings.")
    return " ".join(sentences)

"""Cells that several tables of a report share, and the notes that say what is in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from feddraw.analysis.bootstrap import Interval
from feddraw.analysis.paired_differences import Difference
from feddraw.analysis.statistics_in_words import interval_in_brackets
from feddraw.report.blocks import Cell
from feddraw.report.report_statistics import MeanOverRepeats
from feddraw.results.recorded_run import REFERENCES
from feddraw.results.run_collection import RunCollection


def difference_cells(
    patients: Interval | None, trainings: Difference | None, margin: float
) -> list[Cell]:
    """The difference, its interval over patients and over trainings, and whether both lie above the
    margin.
    """
    estimate = patients.estimate if patients else trainings.mean if trainings else math.nan
    known = [one for one in (patients, trainings) if one is not None]
    shown = "yes" if all(one.low > -margin for one in known) else "not shown"
    return [
        number_cell(estimate, "+.4f") if known else Cell(""),
        *(
            Cell(interval_in_brackets(one), one.low) if one else Cell("")
            for one in (patients, trainings)
        ),
        Cell("" if not known else shown if len(known) > 1 else "one training"),
    ]


def column_cells(means: Mapping[str, MeanOverRepeats], ranked: Sequence[str]) -> dict[str, Cell]:
    """Means of one column, the best of the methods marked."""
    values = [means[m].value for m in ranked if m in means and math.isfinite(means[m].value)]
    best = max(values, default=math.nan)
    most = max((one.runs for one in means.values()), default=0)
    return {
        name: mean_cell(one, most, name in ranked and one.value == best)
        for name, one in means.items()
    }


def mean_cell(one: MeanOverRepeats, most: int, best: bool) -> Cell:
    if not one.runs:
        return Cell("not run")
    if not one.count:
        return Cell("undefined")
    text = f"{one.value:.4f}" + (f" ± {one.spread:.4f}" if math.isfinite(one.spread) else "")
    if one.count < one.runs:
        text += f" (n = {one.count}, undefined in {one.runs - one.count})"
    elif one.count < most:
        text += f" (n = {one.count})"
    return Cell(text, one.value, best)


def table_note(collection: RunCollection) -> str:
    note = "* best mean of the column. "
    if collection.references:
        named = {name.split(" ")[0] for name in collection.references}
        note += (
            " ".join(f"{name}: {REFERENCES[name]}." for name in sorted(named))
            + " References are not ranked. "
        )
    if len({run.repeat for run in collection.runs}) == 1:
        note += "One run per method: a difference may be noise between trainings."
    else:
        note += (
            "Mean ± standard deviation over seeds (ddof 1); n is given where a cell has fewer runs"
            " than others."
        )
    return note


def number_cell(value: float, form: str = ".4f") -> Cell:
    """A number, or that there is none."""
    return Cell(format(value, form), value) if math.isfinite(value) else Cell("undefined")

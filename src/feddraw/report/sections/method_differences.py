"""Tables of differences between methods, over trainings and over patients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

from feddraw.analysis import statistics_in_words as words
from feddraw.analysis.paired_differences import Difference
from feddraw.report.blocks import Block, Cell, Fold, Heading, ReportTable
from feddraw.report.cells import difference_cells, interval_cell, number_cell
from feddraw.report.patients import note_on_patients
from feddraw.report.statistics import Report
from feddraw.report.trainings import ALPHA, TrainingDifferences


def from_focus(report: Report, scenario: str, metric: str) -> Iterator[Block]:
    """The method in focus minus the others over trainings, in a scenario or (empty) over all; and
    how much it depends on the last round.
    """
    trainings = report.trainings[metric]
    others = [method for method in report.shown if (scenario, method) in trainings.differences]
    repeated = any(trainings.differences[scenario, method].repeats > 1 for method in others)
    if not others or not (repeated or trainings.split):
        return
    header = ["method"]
    if repeated:
        header += ["difference", "95 % CI, trainings", "Holm p", "ahead in", "more seeds"]
    if trainings.split:
        header += [f"last round ({trainings.split})", f"last five ({trainings.split})"]
    rows = []
    for method in others:
        row = [Cell(method)]
        if repeated:
            row += _over_trainings(trainings.differences[scenario, method])
        if trainings.split:
            row.append(_mean_cell(trainings.last.get((scenario, method))))
            row.append(_mean_cell(trainings.last_five.get((scenario, method))))
        rows.append(row)
    label = report.metrics[metric]
    where = f"in {scenario}" if scenario else "over all scenarios"
    yield Heading(f"{label}: {report.focus} vs the others {where}", 3)
    yield ReportTable(
        caption=f"{label} of {report.focus} minus that of each method {where}",
        header=header,
        rows=rows,
        note=_note(trainings),
    )


def _over_trainings(difference: Difference) -> list[Cell]:
    if difference.repeats > 1:
        star = "*" if difference.holm_p < ALPHA else ""
        p = Cell(words.p_text(difference.holm_p) + star, difference.holm_p)
        tested = [interval_cell(difference), p]
    else:
        tested = [Cell("one seed"), Cell("one seed")]
    return [
        number_cell(difference.mean, "+.4f"),
        *tested,
        Cell(f"{difference.wins} of {difference.repeats}", difference.wins / difference.repeats),
        Cell(words.more_repeats_in_words(difference)),
    ]


def _mean_cell(difference: Difference | None) -> Cell:
    return Cell("unknown") if difference is None else number_cell(difference.mean, "+.4f")


def _note(trainings: TrainingDifferences) -> str:
    differences = list(trainings.differences.values())
    note = words.differences_in_words(differences, ALPHA, trainings.folds, last=False)
    if trainings.split:
        note += (
            f" last round, last five: the same difference on {trainings.split} data, after the last"
            " round and as the mean of the last five rounds. If they disagree, the result depends"
            " on where training stopped."
        )
    return note


def of_other_pairs(report: Report, scenario: str, metric: str) -> Iterator[Block]:
    """Paired differences over patients between methods that are not in focus."""
    draws = report.draws[scenario]
    others = [method for method in report.shown_in(scenario) if method != report.focus]
    rows = []
    for first, second in combinations(others, 2):
        difference = report.over_patients(scenario, metric, first, second)
        if difference is not None:
            rows.append([Cell(first), Cell(second), *difference_cells(difference)])
    if not rows:
        return
    label = report.metrics[metric]
    pairs = math.comb(1 + len(others), 2)  # also those of the method in focus, shown elsewhere
    table = ReportTable(
        caption=f"{label} in {scenario}: paired differences",
        header=["first", "second", "first − second", f"95 % CI, {draws.unit}"],
        rows=rows,
        note=f"{note_on_patients(draws)} Not corrected for the {pairs} pairs of methods.",
    )
    yield Fold(f"Paired differences between the other methods ({label})", [table])

"""Tables of differences between methods, over trainings and over patients."""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.analysis import statistics_in_words as words
from feddraw.analysis.statistics_in_words import interval_in_brackets
from feddraw.report.blocks import Block, Cell, Fold, Heading, ReportTable
from feddraw.report.bootstrap_over_patients import patients_note
from feddraw.report.differences_over_trainings import TrainingDifferences
from feddraw.report.report_statistics import Report
from feddraw.report.table_cells import difference_cells, number_cell


def differences_section(report: Report, scenario: str, metric: str, label: str) -> Iterator[Block]:
    """The method in focus minus the others over trainings, and how much it depends on the last
    round.
    """
    trainings, where = (
        report.trainings[metric],
        f"in {scenario}" if scenario else "over all scenarios",
    )
    there = [method for method in report.shown if (scenario, method) in trainings.found]
    repeated = any(trainings.found[scenario, method].repeats > 1 for method in there)
    if not there or not (repeated or trainings.split):
        return
    header = ["method"]
    if repeated:
        header += ["difference", "95 % CI, trainings", "Holm p", "ahead in", "more seeds"]
    if trainings.split:
        header += [f"last round ({trainings.split})", f"last five ({trainings.split})"]
    rows = [[Cell(m), *_training_cells(trainings, (scenario, m), repeated)] for m in there]
    note = words.differences_in_words(
        list(trainings.found.values()), 0.05, trainings.folds, last=False
    )
    if trainings.split:
        note += (
            f" last round, last five: the same difference on {trainings.split} data, after the last"
            " round and as "
        )
        note += (
            "the mean of the last five rounds. If they disagree, the result depends on where"
            " training stopped."
        )
    yield Heading(f"{label}: {report.focus} vs the others {where}", 3)
    yield ReportTable(
        f"{label} of {report.focus} minus that of each method {where}", header, rows, (), note
    )


def _training_cells(
    trainings: TrainingDifferences, where: tuple[str, str], repeated: bool
) -> list[Cell]:
    one, cells = trainings.found[where], []
    if repeated:
        tested = [
            Cell(interval_in_brackets(one), one.low),
            Cell(words.p_text(one.holm_p) + "*" * (one.holm_p < 0.05), one.holm_p),
        ]
        cells = [
            number_cell(one.mean, "+.4f"),
            *(tested if one.repeats > 1 else [Cell("one seed")] * 2),
            Cell(f"{one.wins} of {one.repeats}", one.wins / one.repeats),
            Cell(words.more_repeats_in_words(one)),
        ]
    if trainings.split:
        by_round = (trainings.last.get(where), trainings.last_five.get(where))
        cells += [number_cell(late.mean, "+.4f") if late else Cell("unknown") for late in by_round]
    return cells


def other_pairs_section(report: Report, scenario: str, metric: str, label: str) -> Iterator[Block]:
    """The pairs that the first screen leaves out."""
    draws = report.draws[scenario]
    there = [
        method
        for method in report.shown
        if method in draws.methods[metric] and method != report.focus
    ]
    rows = [
        [
            Cell(first),
            Cell(second),
            *difference_cells(draws.difference(metric, first, second), None, 0.0)[:2],
        ]
        for place, first in enumerate(there)
        for second in there[place + 1 :]
    ]
    if rows:
        note = f"{patients_note(draws)} No correction for {len(rows)} pairs."
        header = ["first", "second", "first − second", f"95 % CI, {draws.unit}"]
        table = ReportTable(f"{label} in {scenario}: paired differences", header, rows, (), note)
        yield Fold(f"Paired differences between the other methods ({label})", [table])

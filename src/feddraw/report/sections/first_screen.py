"""The first screen: the weights of the method in focus beside the table of results."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress

from feddraw.report import pictures
from feddraw.report.blocks import Block, Cell, Gallery, OnlyFor, Paragraph, ReportTable, SideBySide
from feddraw.report.bootstrap_over_patients import PatientBootstrap, patients_note
from feddraw.report.differences_over_trainings import trainings_note
from feddraw.report.report_statistics import Report
from feddraw.report.sections import images_by_finding
from feddraw.report.sections.aggregation_weights import methods_with_weights
from feddraw.report.table_cells import column_cells, difference_cells, table_note
from feddraw.results.recorded_run import METRICS
from feddraw.text import join_names, slug


def first_screen(report: Report, scenario: str) -> Iterator[Block]:
    tables = [
        OnlyFor([first_screen_table(report, scenario, m, label)], metric=m)
        for m, label in METRICS.items()
    ]
    weighed = methods_with_weights(report.collection, scenario)
    focus = report.focus if report.focus in weighed else next(iter(weighed), "")
    if not focus:
        yield from tables
        return
    title = f"{focus} in {scenario}: weight by round"
    drawn = pictures.weight_pictures({focus: weighed[focus]}, slug(scenario), title=title)
    yield SideBySide([Gallery(drawn), OnlyFor(tables)])


def population_note(report: Report, scenario: str) -> Iterator[Block]:
    if said := images_by_finding.images_tested_in_words(report.collection.of(scenario)):
        yield Paragraph(said, quiet=True)


def first_screen_table(report: Report, scenario: str, metric: str, label: str) -> ReportTable:
    """One row per method: its mean, and the difference of the method in focus to it, with
    intervals.
    """
    collection, draws = report.collection, report.draws[scenario]
    there = [method for method in report.shown if collection.of(scenario, method)]
    means = column_cells({m: report.mean(scenario, m, metric) for m in there}, collection.methods)
    drawn = draws.methods[metric] if report.focus in draws.methods[metric] else {}
    trained = {method: report.over_repeats(scenario, metric, method) for method in there}
    repeated = any(trained.values())
    columns = {
        "difference": bool(drawn) or repeated,
        f"95 % CI, {draws.unit}": bool(drawn),
        "95 % CI, trainings": repeated,
        f"no worse by {report.margin:g}": bool(drawn) and bool(report.margin),
    }

    def row(method: str) -> list[Cell]:
        over = (
            draws.difference(metric, report.focus, method)
            if method in drawn and method != report.focus
            else None
        )
        cells = difference_cells(over, trained[method], report.margin)
        shown = [cell for cell, is_shown in zip(cells, columns.values(), strict=True) if is_shown]
        return [Cell(method), means[method], *shown]

    one = len(collection.scenarios) == 1
    return ReportTable(
        f"Test {label} in {scenario}"
        + (f"; difference: {report.focus} − method" if drawn or repeated else ""),
        ["method", label, *compress(columns, columns.values())],
        [row(method) for method in there if method in collection.methods],
        [row(method) for method in there if method in collection.references],
        f"{table_note(collection)} {_first_screen_note(report, draws, metric)}",
        label=f"results-{metric}" if one else f"results-{slug(scenario)}-{metric}",
    )


def _first_screen_note(report: Report, draws: PatientBootstrap, metric: str) -> str:
    """What the intervals are made of, and what is not in them."""
    trainings = report.trainings[metric]
    if draws.why_none:
        return " ".join(
            [draws.why_none, *([trainings_note(trainings)] if trainings.repeats > 1 else [])]
        )
    said = f"{patients_note(draws)} {trainings_note(trainings) if trainings.repeats > 1 else ''}"
    if draws.left_out:
        said += (
            " Not compared, because scores of the same images are missing:"
            f" {join_names(draws.left_out)}."
        )
    if report.margin:
        said += (
            f" No worse: both intervals lie above -{report.margin:g}; this needs more than one"
            " training."
        )
    return said

"""The first screen: the weights of the method in focus beside the table of results."""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.analysis.explain_weights import listed
from feddraw.naming import slug
from feddraw.report import pictures
from feddraw.report.blocks import Block, Cell, Columns, Gallery, Only, Table, Text
from feddraw.report.cells import column_cells, difference_cells, patients_note, table_note, trainings_note
from feddraw.report.evidence import Draws, Report, mean
from feddraw.report.sections import images_by_finding
from feddraw.report.sections.weights import weighed_methods
from feddraw.results.recorded_run import METRICS


def first_screen(report: Report, scenario: str) -> Iterator[Block]:
    """The weights of the method in focus beside the table of one scenario."""
    tables: list[Block] = [Only([first_table(report, scenario, m, label)], metric=m) for m, label in METRICS.items()]
    weighed = weighed_methods(report.collection, scenario)
    focus = report.focus if report.focus in weighed else next(iter(weighed), "")
    if not focus:
        yield from tables
        return
    drawn = pictures.weights({focus: weighed[focus]}, slug(scenario), title=f"{focus} in {scenario}: weight by round")
    yield Columns([Gallery(drawn), Only(tables)])


def population(report: Report, scenario: str) -> Iterator[Block]:
    if said := images_by_finding.population(report.collection.of(scenario)):
        yield Text(said, quiet=True)


def first_table(report: Report, scenario: str, metric: str, label: str) -> Table:
    """One row per method: its mean, and the difference of the method in focus to it, with intervals."""
    collection, draws = report.collection, report.draws[scenario]
    there = [method for method in report.shown if collection.of(scenario, method)]
    means = column_cells({m: mean(collection.of(scenario, m), metric) for m in there}, collection.methods)
    drawn = draws.methods[metric] if isinstance(draws, Draws) and report.focus in draws.methods[metric] else {}
    trained = {method: report.over_repeats(scenario, metric, method) for method in there}
    repeated = any(trained.values())
    columns = {
        "difference": bool(drawn) or repeated,
        f"95 % CI, {draws.unit}" if isinstance(draws, Draws) else "": bool(drawn),
        "95 % CI, trainings": repeated,
        f"no worse by {report.margin:g}": bool(drawn) and bool(report.margin),
    }

    def row(method: str) -> list[Cell]:
        over = None
        if method in drawn and method != report.focus and isinstance(draws, Draws):
            over = draws.difference(metric, report.focus, method)
        cells = difference_cells(over, trained[method], report.margin)
        return [
            Cell(method),
            means[method],
            *(cell for cell, shown in zip(cells, columns.values(), strict=True) if shown),
        ]

    one = len(collection.scenarios) == 1
    return Table(
        f"Test {label} in {scenario}" + (f"; difference: {report.focus} − method" if drawn or repeated else ""),
        ["method", label, *(name for name, shown in columns.items() if shown)],
        [row(method) for method in there if method in collection.methods],
        [row(method) for method in there if method in collection.references],
        f"{table_note(collection)} {_interval_note(report, draws, metric)}",
        label=f"results-{metric}" if one else f"results-{slug(scenario)}-{metric}",
    )


def _interval_note(report: Report, draws: Draws | str, metric: str) -> str:
    """What the intervals are made of, and what is not in them."""
    trainings = report.trainings[metric]
    if isinstance(draws, str):
        return " ".join([draws, *([trainings_note(trainings)] if trainings.repeats > 1 else [])])
    said = f"{patients_note(draws)} {trainings_note(trainings) if trainings.repeats > 1 else ''}"
    if draws.left_out:
        said += f" Not compared, because scores of the same images are missing: {listed(draws.left_out)}."
    if report.margin:
        said += f" No worse: both intervals lie above -{report.margin:g}; one training cannot show it."
    return said

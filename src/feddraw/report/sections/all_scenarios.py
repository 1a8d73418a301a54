"""Several scenarios side by side."""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.report.blocks import Block, Cell, Heading, OnlyFor, ReportTable
from feddraw.report.cells import column_cells, note_on_means, number_cell
from feddraw.report.sections import method_differences
from feddraw.report.statistics import Report


def section(report: Report) -> Iterator[Block]:
    if len(report.scenarios) < 2:
        return
    yield Heading("All scenarios", anchor="results")
    for metric in report.metrics:
        over_all = method_differences.from_focus(report, "", metric)
        yield OnlyFor([_table(report, metric), *over_all], metric=metric)


def _table(report: Report, metric: str) -> ReportTable:
    """One row per method, one column per scenario; then the average rank."""
    columns = []
    for scenario in report.scenarios:
        means = {method: report.mean(scenario, method, metric) for method in report.shown}
        columns.append(column_cells(means, report.methods))
    header = ["method", *report.scenarios]
    comparison = report.rankings[metric].comparison
    if comparison is not None:
        header.append("average rank")
        ranks = {
            method: number_cell(rank, ".2f") for method, rank in comparison.average_ranks.items()
        }
        columns.append({method: ranks.get(method, Cell("not ranked")) for method in report.shown})

    def row(method: str) -> list[Cell]:
        return [Cell(method), *(column[method] for column in columns)]

    return ReportTable(
        caption=f"Test {report.metrics[metric]}: mean ± standard deviation over paired seeds",
        header=header,
        rows=list(map(row, report.methods)),
        references=list(map(row, report.collection.references)),
        note=note_on_means(report, metric, report.scenarios),
        label=f"results-{metric}",
    )

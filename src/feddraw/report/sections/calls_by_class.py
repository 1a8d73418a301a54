"""Which classes are mistaken for which, for tasks that call one class: the confusion matrix of each
method, of all test images and of those that each client kept back, and the metrics that follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from feddraw.report.blocks import Block, Cell, Fold, Heading, ReportTable
from feddraw.report.cells import column_cells
from feddraw.report.diagnostic_tests import counted_runs
from feddraw.report.runs import RecordedRun
from feddraw.report.statistics import Report
from feddraw.results.metrics import SplitMetrics
from feddraw.results.score_counts import Calls
from feddraw.text import slug


def section(report: Report, scenario: str) -> Iterator[Block]:
    methods = {
        method: [run for run in runs if run.metrics.test.confusion]
        for method in report.shown_in(scenario)
        if (runs := report.paired_runs(scenario, method))
    }
    methods = {method: runs for method, runs in methods.items() if runs}
    if not methods:
        return
    yield Heading(f"Calls by class in {scenario}", 3)
    yield _all_calls(report, scenario)
    ordered = sorted(methods, key=lambda method: method != report.focus)
    matrices = [_matrix(method, methods[method], scenario) for method in ordered]
    yield matrices[0]
    if matrices[1:]:
        yield Fold(f"The same for {', '.join(ordered[1:])}", matrices[1:])
    by_site = _matrices_of_clients(ordered[0], methods[ordered[0]], scenario)
    if by_site is not None:
        yield Fold(f"By client, on the images that it kept back ({ordered[0]})", [by_site])
    of_sites = _matrices_of_sites(ordered[0], methods[ordered[0]], scenario)
    if of_sites is not None:
        yield Fold(f"By site, on its test images ({ordered[0]})", [of_sites])


def _all_calls(report: Report, scenario: str) -> ReportTable:
    """The metrics of all calls together, by method."""
    methods = report.shown_in(scenario)
    columns = {
        label: column_cells(
            {method: report.mean(scenario, method, metric) for method in methods}, report.methods
        )
        for metric, label in report.task.more.items()
    }
    rows = {
        method: [Cell(method), *(column[method] for column in columns.values())]
        for method in methods
    }
    return ReportTable(
        caption=f"Calls of the test images in {scenario}",
        header=["method", *columns],
        rows=[row for method, row in rows.items() if method in report.methods],
        references=[row for method, row in rows.items() if method not in report.methods],
        note=f"Here {report.task.words.rule}.",
        label=f"calls-{slug(scenario)}",
    )


def _summed(splits: Sequence[SplitMetrics]) -> NDArray[np.int64]:
    return np.asarray(np.sum([np.array(split.confusion) for split in splits], axis=0))


def _matrix(method: str, runs: Sequence[RecordedRun], scenario: str) -> ReportTable:
    classes = runs[0].findings
    counts = _summed([run.metrics.test for run in runs])
    rows = [
        [Cell(name), *(Cell(f"{count:,}", count) for count in row)]
        for name, row in zip(classes, counts.tolist(), strict=True)
    ]
    seeds = "" if len(runs) == 1 else f", {len(runs)} seeds together"
    return ReportTable(
        caption=f"Confusion matrix of {method} in {scenario}{seeds}",
        header=["class", *(f"called {name}" for name in classes)],
        rows=rows,
        note="Test images of the class of the row that are called that of the column.",
        label=f"confusion-{slug(scenario)}-{slug(method)}",
    )


def _matrices_of_clients(
    method: str, runs: Sequence[RecordedRun], scenario: str
) -> ReportTable | None:
    """The same for each client that kept images back; None where none did."""
    kept_back = {}
    for client in dict.fromkeys(name for run in runs for name in run.metrics.clients):
        kept = [
            run.metrics.clients[client].holdout for run in runs if client in run.metrics.clients
        ]
        kept = [split for split in kept if split.confusion]
        if kept:
            kept_back[client] = _summed(kept)
    return _matrices("client", kept_back, runs[0].findings, f"{method} in {scenario}")


def _matrices_of_sites(
    method: str, runs: Sequence[RecordedRun], scenario: str
) -> ReportTable | None:
    """The same for each site that sent its counts in clear; of the first run, as other measures of
    counts are.
    """
    for run, counts in counted_runs(runs):
        of_sites = {
            site: by_split["test"]
            for site, by_split in counts.calls_by_site.items()
            if "test" in by_split
        }
        return _matrices("site", of_sites, run.findings, f"{method} in {scenario}")
    return None


def _matrices(
    kind: str, by_place: Mapping[str, Calls], classes: Sequence[str], about: str
) -> ReportTable | None:
    """One below the other; None where there is none."""
    rows = [
        [Cell(place), Cell(name), *(Cell(f"{count:,}", count) for count in row)]
        for place, matrix in by_place.items()
        for name, row in zip(classes, matrix.tolist(), strict=True)
    ]
    if not rows:
        return None
    return ReportTable(
        caption=f"Confusion matrix of {about} at each {kind}",
        header=[kind, "class", *(f"called {name}" for name in classes)],
        rows=rows,
        label=f"confusion-{kind}s-{slug(about)}",
    )

"""The table of one metric with one column per finding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from feddraw.naming import slug
from feddraw.report.blocks import Block, Cell, Heading, Table
from feddraw.report.cells import column_cells
from feddraw.report.evidence import Report, mean, mean_over
from feddraw.report.sections import images_by_finding
from feddraw.results.runs import Run

WITHOUT_FEW = "mean without †"  # the mean over findings with enough test images


def by_finding(report: Report, scenario: str, metric: str, label: str) -> Iterator[Block]:
    collection = report.collection
    findings = list(dict.fromkeys(finding for run in collection.of(scenario) for finding in run.findings))
    there = [method for method in report.shown if collection.of(scenario, method)]
    columns = {"mean": {m: mean(collection.of(scenario, m), metric) for m in there}}
    if trusted := images_by_finding.unmarked_findings(collection.of(scenario)):
        columns[WITHOUT_FEW] = {m: mean_over(collection.of(scenario, m), metric, trusted) for m in there}
    columns |= {f: {m: mean(collection.of(scenario, m), metric, f) for m in there} for f in findings}
    cells = {name: column_cells(column, collection.methods) for name, column in columns.items()}
    rows = {method: [Cell(method), *(cells[name][method] for name in cells)] for method in there}
    yield Heading(f"{label} by finding in {scenario}", 3)
    yield Table(
        f"Test {label} in {scenario} by finding",
        ["method", *(_heading(name, collection.of(scenario), metric) for name in cells)],
        [rows[method] for method in there if method in collection.methods],
        [rows[method] for method in there if method in collection.references],
        f"* best mean of the column. † {images_by_finding.few_in_words()}.",
        label=f"findings-{slug(scenario)}-{metric}",
    )


def _heading(name: str, runs: Sequence[Run], metric: str) -> str:
    """A finding, marked if few test images show it or do not; the mean says over how many findings it is."""
    if name == "mean":
        return (
            f"mean of {max((sum(math.isfinite(run.test(metric, f)) for f in run.findings) for run in runs), default=0)}"
        )
    if name == WITHOUT_FEW:
        trusted = images_by_finding.unmarked_findings(runs)
        defined = [sum(math.isfinite(run.test(metric, f)) for f in trusted) for run in runs]
        return f"mean of {max(defined, default=0)}, without †"
    return f"{name} †" if name in images_by_finding.marked_findings(runs) else name

"""The table of one metric with one column per finding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from feddraw.data.finding_counts import few_in_words
from feddraw.report.blocks import Block, Cell, Heading, ReportTable
from feddraw.report.report_statistics import Report, mean_over_findings
from feddraw.report.sections import images_by_finding
from feddraw.report.table_cells import column_cells
from feddraw.results.recorded_run import RecordedRun
from feddraw.text import slug


def metrics_by_finding_section(
    report: Report, scenario: str, metric: str, label: str
) -> Iterator[Block]:
    """The means come first, the second of them over findings with enough test images; the other
    findings have a †.
    """
    collection, runs = report.collection, report.collection.of(scenario)
    findings = list(dict.fromkeys(finding for run in runs for finding in run.findings))
    there = [method for method in report.shown if collection.of(scenario, method)]
    columns = {
        _mean_column_name(findings, runs, metric): {
            m: report.mean(scenario, m, metric) for m in there
        }
    }
    if trusted := images_by_finding.findings_with_enough_images(runs):
        name = f"{_mean_column_name(trusted, runs, metric)}, without †"
        columns[name] = {
            m: mean_over_findings(collection.of(scenario, m), metric, trusted) for m in there
        }
    marked = images_by_finding.findings_with_few_images(runs)
    for finding in findings:
        name = f"{finding} †" if finding in marked else finding
        columns[name] = {m: report.mean(scenario, m, metric, finding) for m in there}
    cells = [column_cells(column, collection.methods) for column in columns.values()]
    rows = {method: [Cell(method), *(column[method] for column in cells)] for method in there}
    yield Heading(f"{label} by finding in {scenario}", 3)
    yield ReportTable(
        f"Test {label} in {scenario} by finding",
        ["method", *columns],
        [rows[method] for method in there if method in collection.methods],
        [rows[method] for method in there if method in collection.references],
        f"* best mean of the column. † {few_in_words()}.",
        label=f"findings-{slug(scenario)}-{metric}",
    )


def _mean_column_name(findings: Sequence[str], runs: Sequence[RecordedRun], metric: str) -> str:
    """Over how many of the findings a mean is: those with a value."""
    defined = [
        sum(math.isfinite(run.test(metric, finding)) for finding in findings) for run in runs
    ]
    return f"mean of {max(defined, default=0)}"

"""The table of one metric with one column per finding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from feddraw.data.finding_counts import few_in_words
from feddraw.report.blocks import Block, Cell, Heading, ReportTable
from feddraw.report.cells import NOTE_ON_STAR, column_cells
from feddraw.report.runs import RecordedRun
from feddraw.report.sections.images_by_finding import (
    findings_with_enough_images,
    findings_with_few_images,
)
from feddraw.report.statistics import Report
from feddraw.text import slug


def section(report: Report, scenario: str, metric: str) -> Iterator[Block]:
    """The means come first, the second of them over findings with enough test images; the other
    findings have a †.
    """
    runs = report.runs(scenario)
    findings = list(dict.fromkeys(finding for run in runs for finding in run.findings))
    methods = report.shown_in(scenario)
    columns = {
        _name_of_mean(findings, runs, metric): {
            method: report.mean(scenario, method, metric) for method in methods
        }
    }
    enough = findings_with_enough_images(runs)
    if enough:
        columns[f"{_name_of_mean(enough, runs, metric)}, without †"] = {
            method: report.mean_over_findings(scenario, method, metric, enough)
            for method in methods
        }
    few = findings_with_few_images(runs)
    for finding in findings:
        columns[f"{finding} †" if finding in few else finding] = {
            method: report.mean(scenario, method, metric, finding) for method in methods
        }
    cells = [column_cells(means, report.methods) for means in columns.values()]
    rows = {method: [Cell(method), *(column[method] for column in cells)] for method in methods}
    label = report.metrics[metric]
    compared = len(report.methods) > 1 and report.pairing(scenario, metric).repeats
    notes = [NOTE_ON_STAR] if compared else []
    if few:
        notes.append(f"† {few_in_words(report.task.words.labels)}.")
    one = report.task.words.labels.one
    yield Heading(f"{label} by {one} in {scenario}", 3)
    yield ReportTable(
        caption=f"Test {label} in {scenario} by {one}",
        header=["method", *columns],
        rows=[row for method, row in rows.items() if method in report.methods],
        references=[row for method, row in rows.items() if method not in report.methods],
        note=" ".join(notes),
        label=f"findings-{slug(scenario)}-{metric}",
    )


def _name_of_mean(findings: Sequence[str], runs: Sequence[RecordedRun], metric: str) -> str:
    """Over how many of the findings a mean is: those with a value."""
    defined = [
        sum(math.isfinite(run.test(metric, finding)) for finding in findings) for run in runs
    ]
    return f"mean of {max(defined, default=0)}"

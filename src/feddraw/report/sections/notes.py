"""What people wrote down about runs: notes and tags (`feddraw run --note --tag`)."""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.report.blocks import Block, Cell, Heading, ReportTable
from feddraw.report.runs import RecordedRun, note_and_tags
from feddraw.report.sections.what_was_run import shown_path
from feddraw.report.statistics import Report


def section(report: Report) -> Iterator[Block]:
    noted = [run for run in report.collection.runs if any(note_and_tags(run))]
    if not noted:
        return
    yield Heading("Notes and tags", anchor="notes")
    yield ReportTable(
        caption="What was written down with the runs",
        header=["method", "scenario", "seed", "note", "tags", "folder"],
        rows=[_row(run, report) for run in noted],
    )


def _row(run: RecordedRun, report: Report) -> list[Cell]:
    folder = shown_path(run.path, report.folders)
    return list(map(Cell, (run.method, run.scenario, run.repeat, *note_and_tags(run), folder)))

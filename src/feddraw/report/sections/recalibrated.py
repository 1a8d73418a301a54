"""Recalibrated runs: their scores before and after, on images that the lines were not fitted on."""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.errors import UserError
from feddraw.experiment.recalibration import judge
from feddraw.report.blocks import Block, Heading, Paragraph
from feddraw.report.diagnostic_tables import (
    SCORES_NOTE,
    WITHOUT_THRESHOLD,
    TestedRow,
    few_in_a_sentence,
    measures_table,
)
from feddraw.report.runs import RecordedRun
from feddraw.report.statistics import Report
from feddraw.results.recalibration import PLATT, read_recalibration
from feddraw.tasks import Task
from feddraw.text import slug


def section(report: Report, scenario: str) -> Iterator[Block]:
    """Two rows per finding of each run with a recalibration."""
    blocks = [
        block for run in report.runs(scenario) for block in _of_run(run, report.task, scenario)
    ]
    if blocks:
        yield Heading(f"Recalibrated scores in {scenario}", 3)
        yield Paragraph(
            "Each finding's logit is changed by a line that was fitted on validation images; judged"
            " on test images of patients who are in no validation image. Predictions and exports of"
            " these runs use it. All other tables are about the scores as the network gives them."
        )
        yield from blocks


def _of_run(run: RecordedRun, task: Task, scenario: str) -> Iterator[Block]:
    try:
        recalibration = read_recalibration(run.path)
    except UserError as error:
        yield Paragraph(str(error))
        return
    if recalibration is None:
        return
    rows = []
    for finding, judged in judge(run, recalibration).items():
        line = recalibration.line(finding)
        after = f"{line.slope:.3f} × logit"
        if recalibration.kind == PLATT:
            after += f" {'+' if line.intercept >= 0 else '−'} {abs(line.intercept):.3f}"
        rows += [
            TestedRow([finding, "as trained"], judged.before),
            TestedRow([finding, after], judged.after),
        ]
    if not rows:
        return
    name = f"{run.method}, seed {run.repeat}"
    yield measures_table(
        rows,
        ["finding", "scores"],
        WITHOUT_THRESHOLD,
        task=task,
        caption=f"{name} in {scenario}, recalibrated ({recalibration.kind})",
        note=SCORES_NOTE + few_in_a_sentence([row.test for row in rows], task),
        label=f"recalibrated-{slug(scenario)}-{slug(name)}",
    )
    for finding, why in recalibration.unfitted.items():
        yield Paragraph(f"{name}: {finding} is not recalibrated ({why}).", quiet=True)

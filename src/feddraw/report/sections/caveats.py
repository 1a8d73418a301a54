"""What was left out of a report, and what makes its numbers less certain than they look."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from feddraw.report.blocks import Block, Bullets, Heading
from feddraw.report.runs import (
    RecordedRun,
    findings_without_scores,
    undefined_findings,
)
from feddraw.report.sections.what_was_run import shown_path
from feddraw.report.statistics import Report
from feddraw.results.score_counts import read_score_counts
from feddraw.tasks import Task


def section(report: Report) -> Iterator[Block]:
    """What was left out, and what makes numbers less certain than they look."""
    left_out = [*_left_out(report), *uncounted_runs(report)]
    if left_out:
        yield Heading("Left out", 3)
        yield Bullets(left_out)
    runs = report.collection.runs
    notes = [
        *report.collection.notes,
        *_undefined(runs, report.task),
        *_diverged(runs),
        *_not_finite(runs, report.task),
        *_unmeasured(runs),
    ]
    if notes:
        yield Heading("To keep in mind", 3)
        yield Bullets(notes)


def _left_out(report: Report) -> Iterator[str]:
    """Each folder that is not in the tables, and why; paths as the page shows them."""
    collection = report.collection
    paths = {run.path for run in collection.runs} | {left.path for left in collection.problems}
    outside = [path for path in paths if path.is_absolute() or ".." in path.parts]
    outside.sort(key=lambda path: -len(str(path)))  # one may be the beginning of another
    for problem in collection.problems:
        reason = problem.reason
        for path in outside:
            reason = reason.replace(str(path), shown_path(path, report.folders))
        yield f"{shown_path(problem.path, report.folders)}: {reason}"


def uncounted_runs(report: Report) -> list[str]:
    """The finished runs that no mean, rank or test has, because not all methods have their seed."""
    sentences: dict[str, None] = {}
    for scenario in report.scenarios:
        for metric, label in report.metrics.items():
            for sentence in report.pairing(scenario, metric).uncounted_in_words():
                if metric == "auc":
                    sentences[f"{scenario}: {sentence}"] = None
                elif f"{scenario}: {sentence}" not in sentences:
                    sentences[f"{label} in {scenario}: {sentence}"] = None
    return list(sentences)


def _undefined(runs: Sequence[RecordedRun], task: Task) -> list[str]:
    """Which metrics a finding does not have, and why."""
    sentences = set()
    for run in runs:
        for finding in undefined_findings(run):
            if math.isnan(run.test("auc", finding)):
                what = " or ".join(task.labels.values())
                why = f"{task.words.labels.one_kind} in the test data"
            else:
                what = " or ".join(list(task.labels.values())[1:])
                why = (
                    f"{task.words.labels.one_kind} in the validation data, so there is no threshold"
                )
            sentences.add(
                f"{finding} has no {what} in {run.scenario}: {why}, left out of the mean."
            )
    return sorted(sentences)


def _diverged(runs: Sequence[RecordedRun]) -> Iterator[str]:
    for run in runs:
        if run.diverged:
            divergence = run.diverged
            yield f"{_named(run)}, diverged in round {divergence.round}: {divergence.why}."


def _not_finite(runs: Sequence[RecordedRun], task: Task) -> Iterator[str]:
    metrics = " or ".join(task.labels.values())
    for run in runs:
        findings = findings_without_scores(run)
        if findings:
            yield (
                f"{_named(run)}, has no {metrics} for {', '.join(findings)}:"
                " the model's scores are not finite numbers."
            )


def _unmeasured(runs: Sequence[RecordedRun]) -> Iterator[str]:
    for run in runs:
        counts = read_score_counts(run.path)
        if counts is not None and "test" in counts.by_split:
            why = counts.why_unmeasured("test")
            if why:
                yield f"{_named(run)}, is not shown as a diagnostic test: {why}."


def _named(run: RecordedRun) -> str:
    return f"{run.method} in {run.scenario}, seed {run.repeat}"

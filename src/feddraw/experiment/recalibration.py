"""Recalibrate a finished run: fit a line per finding on its validation images, and judge it on test
images of other patients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feddraw.analysis.diagnostic_measures import DiagnosticTest
from feddraw.analysis.recalibration import NotFitted, Scored, fit_line
from feddraw.errors import UserError, one_of
from feddraw.results.predictions import Predictions
from feddraw.results.recalibration import LINES, UNCHANGED, Recalibration
from feddraw.results.recorded_run import RecordedRun, finished_run
from feddraw.results.score_counts import ScoreCounts, bin_scores, read_score_counts
from feddraw.tasks import task_of_run


@dataclass(frozen=True, eq=False)
class Judged:
    """A finding's scores before and after, on images that the line was not fitted on."""

    before: DiagnosticTest
    after: DiagnosticTest


def recalibrate(folder: Path, kind: str) -> tuple[Recalibration, dict[str, Judged]]:
    """Fit and keep the lines of a run; gives how each finding is judged."""
    one_of("--kind", kind, LINES)
    run = finished_run(folder)
    if not task_of_run(run).can_be_recalibrated:
        raise UserError(
            f"{folder}: the scores of {run.task} depend on each other, and a line for each cannot"
            " make them calibrated: recalibrate a run of findings"
        )
    fitted_on = dict(scored_findings(run, "validation"))
    if not fitted_on:
        raise UserError(_why_not_scored(run, "validation"))
    lines = {}
    unfitted = {}
    for finding, scored in fitted_on.items():
        try:
            lines[finding] = fit_line(scored, kind)
        except NotFitted as why:
            lines[finding] = UNCHANGED
            unfitted[finding] = str(why)
    if len(unfitted) == len(lines):
        reasons = "; ".join(f"{finding}: {why}" for finding, why in unfitted.items())
        raise UserError(f"{folder}: no finding can be recalibrated ({reasons})")
    recalibration = Recalibration(kind, lines, unfitted)
    judged = judge(run, recalibration)
    recalibration.write(folder)
    return recalibration, judged


def judge(run: RecordedRun, recalibration: Recalibration) -> dict[str, Judged]:
    """By finding with a line, on test images of patients of whom no image was fitted on."""
    return {
        finding: Judged(scored.test(UNCHANGED), scored.test(recalibration.line(finding)))
        for finding, scored in scored_findings(run, "test")
        if finding not in recalibration.unfitted and len(scored.labels)
    }


def scored_findings(run: RecordedRun, split: str) -> Iterator[tuple[str, Scored]]:
    """The scores of a split by finding, from single images or from the sites' counts; of test
    images those of patients who are in no validation image.
    """
    predictions = run.predictions(split)
    if predictions is not None and predictions.scores.ndim == 2:
        yield from _of_predictions(predictions, _patients_fitted_on(run, split))
        return
    counts = read_score_counts(run.path)
    if counts is not None and split in counts.by_split and not counts.why_unmeasured(split):
        yield from _of_counts(counts, split)


def _why_not_scored(run: RecordedRun, split: str) -> str:
    counts = read_score_counts(run.path)
    why = counts.why_unmeasured(split) if counts is not None and split in counts.by_split else ""
    if why:
        return f"{run.path}: {why}"
    return f"{run.path} has neither scores nor counts of its {split} images for one common model"


def _patients_fitted_on(run: RecordedRun, split: str) -> Mapping[int, None]:
    if split == "validation":
        return {}
    validation = run.predictions("validation")
    if validation is None or validation.patients is None:
        return {}
    return dict.fromkeys(validation.patients.tolist())


def _of_predictions(
    predictions: Predictions, left_out: Mapping[int, None]
) -> Iterator[tuple[str, Scored]]:
    owners = predictions.patients
    if owners is None:
        owners = np.arange(len(predictions.truth))
        left_out = {}
    others = ~np.isin(owners, list(left_out))
    for column, finding in enumerate(predictions.classes):
        known = others & (predictions.truth[:, column] >= 0)
        yield (
            finding,
            Scored(
                predictions.scores[known, column], predictions.truth[known, column], owners[known]
            ),
        )


def _of_counts(counts: ScoreCounts, split: str) -> Iterator[tuple[str, Scored]]:
    """Each image with the score in the middle of its bin, and as a patient of its own."""
    for place, finding in enumerate(counts.findings):
        histogram = counts.by_split[split][:, place]
        scores = np.concatenate([np.repeat(bin_scores(), of_label) for of_label in histogram])
        labels = np.repeat(np.arange(2), histogram.sum(axis=1))
        yield finding, Scored(scores, labels, np.arange(len(labels)))

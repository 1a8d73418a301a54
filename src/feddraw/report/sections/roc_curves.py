"""Sensitivity and specificity: the ROC curves of a few methods, and where their thresholds land."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis import plots
from feddraw.analysis.metrics import ROC_GRID, roc_curve
from feddraw.report.blocks import Block, Fold, Gallery, Heading, Picture
from feddraw.report.runs import Predictions, RecordedRun, sensitivity_and_specificity
from feddraw.report.sections.images_by_finding import findings_with_few_images
from feddraw.report.statistics import Report
from feddraw.text import grouped, slug

Floats = NDArray[np.float64]
ScoredRun = tuple[RecordedRun, Predictions]
MOST_CURVES = 4  # in a panel; more cannot be distinguished


def section(report: Report, scenario: str) -> Iterator[Block]:
    scored = list(scored_runs(report.paired_runs(scenario)))
    methods = shown_methods([run for run, _ in scored], report.focus)
    by_method = {
        method: [(run, part) for run, part in scored if run.method == method] for method in methods
    }
    few = findings_with_few_images(report.runs(scenario))
    pictures: list[Picture] = []
    of_few_images: list[Picture] = []
    for finding in dict.fromkeys(finding for run, _ in scored for finding in run.findings):
        drawn = of_few_images if finding in few else pictures
        drawn += _picture(by_method, finding, report, scenario)
    if not pictures:
        pictures, of_few_images = of_few_images, pictures
    if pictures:
        note = "Mean over seeds; the marker is where "
        if report.task.has_thresholds:
            note += "the threshold chosen on validation data lands on test data."
        else:
            note += f"calls on test data are: {report.task.words.rule}."
        yield Heading(f"Sensitivity and specificity in {scenario}", 3)
        yield Gallery(pictures, note)
    if of_few_images:
        many = report.task.words.labels.many
        yield Fold(f"The same for {many} with few test images (†)", [Gallery(of_few_images)])


def scored_runs(runs: Sequence[RecordedRun]) -> Iterator[ScoredRun]:
    """Runs that kept the test scores of one common model."""
    for run in runs:
        predictions = run.predictions()
        if predictions is not None and predictions.scores.ndim == 2:
            yield run, predictions


def shown_methods(runs: Sequence[RecordedRun], focus: str) -> list[str]:
    """The method in focus, and the best of the others."""
    areas = grouped((run.method, run.test("auc")) for run in runs)
    ordered = sorted(areas, key=lambda method: (method != focus, -float(np.mean(areas[method]))))
    return ordered[:MOST_CURVES]


def _picture(
    by_method: dict[str, list[ScoredRun]], finding: str, report: Report, scenario: str
) -> Iterator[Picture]:
    """One finding's panel, unless no method has a curve for it."""
    curves: dict[str, tuple[Floats, Floats]] = {}
    points: dict[str, tuple[float, float]] = {}  # false alarms and sensitivity
    for method, scored in by_method.items():
        with_finding = [(run, part) for run, part in scored if finding in part.classes]
        drawn = list(_curves(with_finding, finding))
        rates = [sensitivity_and_specificity(run, finding) for run, _ in with_finding]
        if drawn and np.isfinite(rates).all():
            sensitivity, specificity = np.mean(rates, axis=0).tolist()
            curves[method] = (ROC_GRID, np.mean(drawn, axis=0))
            points[method] = (1 - specificity, sensitivity)
    if not curves:
        return
    figure, axes = plots.panel_figure(3.6, 3.6)
    plots.draw_roc(axes, curves, points, report.shown)
    axes.set_title(plots.short_label(finding, 40))
    words = "; ".join(
        f"{method}: sensitivity {sensitivity:.2f}, specificity {1 - false_alarms:.2f}"
        for method, (false_alarms, sensitivity) in points.items()
    )
    yield Picture(f"{slug(scenario)}-roc-{slug(finding)}", figure, f"ROC of {finding}. {words}")


def _curves(scored: Sequence[ScoredRun], finding: str) -> Iterator[Floats]:
    """Sensitivity over the grid of false alarms, of each run that has both kinds of image."""
    for _, predictions in scored:
        column = predictions.classes.index(finding)
        curve = roc_curve(predictions.scores[:, column], predictions.truth[:, column])
        if curve is not None:
            yield curve

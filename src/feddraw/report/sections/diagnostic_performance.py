"""How the model would do as a diagnostic test of each finding: accuracy at the threshold,
discrimination, calibration and net benefit, each with an interval over patients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from feddraw.analysis import diagnostic_plots, plots
from feddraw.analysis.diagnostic_measures import (
    CALIBRATION_BINS,
    DiagnosticTest,
    Measured,
    ModelScores,
    net_benefit_of_all,
    precision_recall_curve,
    reliability_bins,
)
from feddraw.data.finding_counts import FEW_FOR_AUC
from feddraw.report.blocks import (
    Block,
    Cell,
    Fold,
    Gallery,
    Heading,
    Paragraph,
    Picture,
    ReportTable,
)
from feddraw.report.patients import pooled_images
from feddraw.report.runs import Predictions, RecordedRun, thresholds
from feddraw.report.sections.roc_curves import MOST_CURVES, scored_runs, shown_methods
from feddraw.report.statistics import Report
from feddraw.text import slug

Measure = Callable[[DiagnosticTest], Measured]
# By method and finding; findings that have images of both labels.
Tests = Mapping[str, Mapping[str, DiagnosticTest]]

AT_THE_THRESHOLD: Mapping[str, Measure] = {
    "sensitivity": DiagnosticTest.sensitivity,
    "specificity": DiagnosticTest.specificity,
    "PPV": DiagnosticTest.positive_predictive_value,
    "NPV": DiagnosticTest.negative_predictive_value,
}
WITHOUT_THRESHOLD: Mapping[str, Measure] = {
    "AUC": DiagnosticTest.auc,
    "PR-AUC": DiagnosticTest.average_precision,
    "Brier score": DiagnosticTest.brier_score,
    "calibration slope": DiagnosticTest.calibration_slope,
    "calibration intercept": DiagnosticTest.calibration_intercept,
    "calibration error": DiagnosticTest.calibration_error,
}
NET_BENEFIT_POINTS = 40  # of a decision curve
TOO_FEW = "too few"


def section(report: Report, scenario: str) -> Iterator[Block]:
    scored = list(scored_runs(report.paired_runs(scenario)))
    methods = shown_methods([run for run, _ in scored], report.focus)[:MOST_CURVES]
    tests = {
        method: diagnostic_tests([pair for pair in scored if pair[0].method == method])
        for method in methods
    }
    tests = {method: of_method for method, of_method in tests.items() if of_method}
    if not tests:
        return
    yield Heading(f"As a diagnostic test: accuracy, calibration and net benefit in {scenario}", 3)
    yield Paragraph(_note(tests))
    first, *others = tests
    yield from _tables(tests[first], first, scenario)
    if others:
        inner = [table for method in others for table in _tables(tests[method], method, scenario)]
        yield Fold(f"The same for {', '.join(others)}", inner)
    yield from _galleries(tests, report, scenario)


def diagnostic_tests(
    scored: Sequence[tuple[RecordedRun, Predictions]],
) -> dict[str, DiagnosticTest]:
    """By finding, from the test scores of one method's runs: a model per seed. Findings without
    both kinds of image in every seed are left out.
    """
    if not scored:
        return {}
    images = pooled_images([predictions for _, predictions in scored])
    tests = {}
    for finding in scored[0][1].classes:
        models = []
        for place, (run, predictions) in enumerate(scored):
            if finding not in predictions.classes:
                continue
            column = predictions.classes.index(finding)
            model = ModelScores.of_known(
                scores=predictions.scores[:, column],
                truth=predictions.truth[:, column],
                patients=images.owners[images.repeat == place],
                threshold=thresholds(run)[run.findings.index(finding)],
            )
            if 0 < model.labels.sum() < len(model.labels):
                models.append(model)
        if len(models) == len(scored):
            tests[finding] = DiagnosticTest(models)
    return tests


def _note(tests: Tests) -> str:
    few = (
        f" “{TOO_FEW}” marks findings with fewer than {FEW_FOR_AUC} positive or negative test"
        " images: their intervals say little."
    )
    every_test = [test for of_method in tests.values() for test in of_method.values()]
    return (
        "On test images, whose labels were not used to choose anything: thresholds were chosen on"
        " validation images. Scores are taken as probabilities. In brackets: 95 % confidence"
        " intervals over patients (images, where patients are not known); variation between"
        " trainings is not in them." + (few if any(map(_has_few, every_test)) else "")
    )


def _has_few(test: DiagnosticTest) -> bool:
    return min(test.positives, test.negatives) < FEW_FOR_AUC


# --------------------------------------------------------------------------------------- the tables


def _tables(tests: Mapping[str, DiagnosticTest], method: str, scenario: str) -> Iterator[Block]:
    name = f"{slug(scenario)}-{slug(method)}"
    yield _table(
        tests,
        AT_THE_THRESHOLD,
        caption=f"{method} in {scenario}, at the thresholds chosen on validation images",
        note=(
            "PPV and NPV: positive and negative predictive value at the prevalence of these images."
            " Intervals: Clopper and Pearson, with the effective number of images where patients"
            " have several (Korn and Graubard)."
        ),
        label=f"at-threshold-{name}",
        with_counts=True,
    )
    yield _table(
        tests,
        WITHOUT_THRESHOLD,
        caption=f"{method} in {scenario}: discrimination and calibration of the scores",
        note=(
            "PR-AUC: average precision; a score of no use has the prevalence. Brier score: 0 is"
            " ideal. Calibration slope 1 and intercept 0 are ideal; a slope below 1 means scores"
            " that are too extreme, an intercept below 0 scores that are too high. Calibration"
            f" error: expected calibration error over {CALIBRATION_BINS} bins of equal numbers of"
            " images, which is above 0 by chance even where scores are calibrated."
        ),
        label=f"calibration-{name}",
    )


def _table(
    tests: Mapping[str, DiagnosticTest],
    measures: Mapping[str, Measure],
    *,
    caption: str,
    note: str,
    label: str,
    with_counts: bool = False,
) -> ReportTable:
    """One row per finding: its images, where they are wanted, its prevalence, then each measure."""
    rows = []
    for finding, test in tests.items():
        counts = f"{test.positives:,} / {test.negatives:,}"
        if _has_few(test):
            counts += f" ({TOO_FEW})"
        prevalence = test.positives / (test.positives + test.negatives)
        row = [Cell(finding)]
        if with_counts:
            row.append(Cell(counts, test.positives))
        row.append(Cell(f"{prevalence:.1%}", prevalence))
        rows.append([*row, *(_cell(measure(test)) for measure in measures.values())])
    counted = ["positive / negative"] if with_counts else []
    header = ["finding", *counted, "prevalence", *measures]
    return ReportTable(caption=caption, header=header, rows=rows, note=note, label=label)


def _cell(measured: Measured) -> Cell:
    if not measured.defined:
        return Cell("undefined")
    interval = f" [{measured.low:.3f}, {measured.high:.3f}]" if np.isfinite(measured.low) else ""
    return Cell(f"{measured.value:.3f}{interval}", measured.value)


# -------------------------------------------------------------------------------------- the figures


def _galleries(tests: Tests, report: Report, scenario: str) -> Iterator[Block]:
    """Reliability, precision and recall, and decision curves of each finding with enough images."""
    findings = list(dict.fromkeys(finding for of_method in tests.values() for finding in of_method))
    drawn: dict[str, Mapping[str, DiagnosticTest]] = {}
    for finding in findings:
        by_method = {
            method: of_method[finding]
            for method, of_method in tests.items()
            if finding in of_method and of_method[finding].sound
        }
        if by_method and not _has_few(next(iter(by_method.values()))):
            drawn[finding] = by_method
    if not drawn:
        return
    low, high = report.settings.decision_range
    of_finding = partial(_pictures, drawn, report, scenario)
    yield Gallery(
        list(of_finding("reliability", _reliability)),
        f"Reliability: {CALIBRATION_BINS} bins of equal numbers of images; calibrated scores lie on"
        " the line. Grey bars: how the scores of the first method are distributed.",
    )
    precision_recall = Gallery(list(of_finding("precision-recall", _precision_recall)))
    yield Fold("Precision and recall of each finding", [precision_recall])
    decision_curves = Gallery(
        list(of_finding("decision", _decision_curves)),
        f"Decision curves for threshold probabilities from {low:.0%} to {high:.0%}: net benefit is"
        " true positives per image, less false ones times the odds of the threshold. Shaded: 95 %"
        " interval of the first method.",
    )
    yield Fold("Decision curves of each finding", [decision_curves])


Draw = Callable[[Axes, Mapping[str, DiagnosticTest], Report], str]


def _pictures(
    drawn: Mapping[str, Mapping[str, DiagnosticTest]],
    report: Report,
    scenario: str,
    kind: str,
    draw: Draw,
) -> Iterator[Picture]:
    """One panel per finding; `draw` gives what it shows in words."""
    for finding, by_method in drawn.items():
        figure, axes = plots.panel_figure(3.6, 3.6)
        words = draw(axes, by_method, report)
        axes.set_title(plots.short_label(finding, 40))
        name = f"{slug(scenario)}-{kind}-{slug(finding)}"
        yield Picture(name, figure, f"{finding}: {words}")


def _pooled(test: DiagnosticTest) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Scores and labels of all seeds, one after another: each seed has the same weight."""
    scores = np.concatenate([model.scores for model in test.models])
    labels = np.concatenate([model.labels for model in test.models]).astype(np.int64)
    return scores, labels


def _reliability(axes: Axes, by_method: Mapping[str, DiagnosticTest], report: Report) -> str:
    bins = {method: reliability_bins(*_pooled(test)) for method, test in by_method.items()}
    scores, _ = _pooled(next(iter(by_method.values())))
    diagnostic_plots.draw_reliability(axes, bins, scores, report.shown)
    errors = [
        f"{method} calibration error {test.calibration_error().value:.3f}"
        for method, test in by_method.items()
    ]
    return f"reliability; {', '.join(errors)}"


def _precision_recall(axes: Axes, by_method: Mapping[str, DiagnosticTest], report: Report) -> str:
    curves = {}
    for method, test in by_method.items():
        curve = precision_recall_curve(*_pooled(test))
        if curve is not None:
            curves[method] = curve
    _, labels = _pooled(next(iter(by_method.values())))
    prevalence = float(labels.mean())
    diagnostic_plots.draw_precision_recall(axes, curves, prevalence, report.shown)
    areas = [
        f"{method} PR-AUC {test.average_precision().value:.3f}"
        for method, test in by_method.items()
    ]
    return f"precision over recall; {', '.join(areas)}, prevalence {prevalence:.3f}"


def _decision_curves(axes: Axes, by_method: Mapping[str, DiagnosticTest], report: Report) -> str:
    low, high = report.settings.decision_range
    limits = np.linspace(low, high, NET_BENEFIT_POINTS).tolist()
    benefits = {
        method: [test.net_benefit(limit) for limit in limits] for method, test in by_method.items()
    }
    _, labels = _pooled(next(iter(by_method.values())))
    everybody = list(net_benefit_of_all(labels, limits))
    diagnostic_plots.draw_decision_curves(
        axes,
        limits,
        benefits,
        all_positive=everybody,
        prevalence=float(labels.mean()),
        order=report.shown,
    )
    middle = NET_BENEFIT_POINTS // 2
    shown = [f"{method} {of_method[middle].value:.4f}" for method, of_method in benefits.items()]
    return (
        f"net benefit at {limits[middle]:.0%}; {', '.join(shown)}, calling all"
        f" {everybody[middle]:.4f}"
    )

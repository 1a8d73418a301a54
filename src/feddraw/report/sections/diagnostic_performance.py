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
    net_benefit_of_all,
    precision_recall_curve,
    reliability_bins,
)
from feddraw.report.blocks import Block, Fold, Gallery, Heading, Paragraph, Picture
from feddraw.report.diagnostic_tables import (
    TestedRow,
    few_in_a_sentence,
    has_few,
    performance_tables,
)
from feddraw.report.diagnostic_tests import counted_runs, diagnostic_tests, tests_of_counts
from feddraw.report.sections.roc_curves import MOST_CURVES, scored_runs, shown_methods
from feddraw.report.statistics import Report
from feddraw.results.score_counts import ScoreCounts
from feddraw.tasks import Task
from feddraw.text import slug

# By method and finding.
Tests = Mapping[str, Mapping[str, DiagnosticTest]]

NET_BENEFIT_POINTS = 40  # of a decision curve
OF_SCORES = (
    " In brackets: 95 % confidence intervals over patients (images, where patients are not known)."
)


def section(report: Report, scenario: str) -> Iterator[Block]:
    scored = list(scored_runs(report.paired_runs(scenario)))
    methods = shown_methods([run for run, _ in scored], report.focus)[:MOST_CURVES]
    tests = {
        method: diagnostic_tests([pair for pair in scored if pair[0].method == method])
        for method in methods
    }
    source = OF_SCORES
    if not tests:
        counted = {pair[0].method: pair for pair in counted_runs(report.paired_runs(scenario))}
        methods = shown_methods([run for run, _ in counted.values()], report.focus)[:MOST_CURVES]
        tests = {method: tests_of_counts(counted[method]) for method in methods}
        source = of_counts_in_words([counts for _, counts in counted.values()])
    tests = {method: of_method for method, of_method in tests.items() if of_method}
    if not tests:
        return
    yield Heading(f"As a diagnostic test: accuracy, calibration and net benefit in {scenario}", 3)
    yield Paragraph(_note(tests, source, report.task))
    first, *others = tests
    yield from _tables(tests[first], first, report.task, scenario)
    if others:
        inner = [
            table
            for method in others
            for table in _tables(tests[method], method, report.task, scenario)
        ]
        yield Fold(f"The same for {', '.join(others)}", inner)
    yield from _galleries(tests, report, scenario)


def of_counts_in_words(counted: Sequence[ScoreCounts]) -> str:
    """What numbers rest on where no score left a site."""
    sums = " From counts that the sites added up: scores are known to a bin of their logit."
    if any(counts.secure for counts in counted):
        sums += (
            " Under secure sums the server saw the sum over all sites and no site's counts, so"
            " there are pooled numbers only, neither by site nor by subgroup."
        )
    return (
        f"{sums} In brackets: 95 % confidence intervals over images, because counts do not say"
        " which images are of one patient; they are too narrow where patients have several."
    )


def _note(tests: Tests, source: str, task: Task) -> str:
    chosen = ": thresholds were chosen on validation images" if task.has_thresholds else ""
    every_test = [test for of_method in tests.values() for test in of_method.values()]
    return (
        f"On test images, whose labels were not used to choose anything{chosen}."
        f" Scores are taken as probabilities.{source} Variation between"
        " trainings is not in them." + few_in_a_sentence(every_test, task)
    )


# --------------------------------------------------------------------------------------- the tables


def _tables(
    tests: Mapping[str, DiagnosticTest], method: str, task: Task, scenario: str
) -> Iterator[Block]:
    rows = [TestedRow([finding], test) for finding, test in tests.items()]
    label = f"{slug(scenario)}-{slug(method)}"
    yield from performance_tables(
        rows, [task.words.labels.one], f"{method} in {scenario}", label, task
    )


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
        if by_method and not has_few(next(iter(by_method.values()))):
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
    yield Fold(f"Precision and recall of each {report.task.words.labels.one}", [precision_recall])
    decision_curves = Gallery(
        list(of_finding("decision", _decision_curves)),
        f"Decision curves for threshold probabilities from {low:.0%} to {high:.0%}: net benefit is"
        " true positives per image, less false ones times the odds of the threshold. Shaded: 95 %"
        " interval of the first method.",
    )
    yield Fold(f"Decision curves of each {report.task.words.labels.one}", [decision_curves])


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

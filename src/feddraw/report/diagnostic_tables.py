"""Tables of a diagnostic test's measures, one row per finding, or per finding and subgroup."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from feddraw.analysis.diagnostic_measures import CALIBRATION_BINS, DiagnosticTest, Measured
from feddraw.data.finding_counts import FEW_FOR_AUC
from feddraw.report.blocks import Cell, ReportTable
from feddraw.tasks import Task

Measure = Callable[[DiagnosticTest], Measured]

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
THRESHOLD_NOTE = (
    "PPV and NPV: positive and negative predictive value at the prevalence of these images."
    " Intervals: Clopper and Pearson, with the effective number of images where patients"
    " have several (Korn and Graubard)."
)
SCORES_NOTE = (
    "PR-AUC: average precision; a score of no use has the prevalence. Brier score: 0 is"
    " ideal. Calibration slope 1 and intercept 0 are ideal; a slope below 1 means scores"
    " that are too extreme, an intercept below 0 scores that are too high. Calibration"
    f" error: expected calibration error over {CALIBRATION_BINS} bins of equal numbers of"
    " images, which is above 0 by chance even where scores are calibrated."
)
TOO_FEW = "too few"


@dataclass(frozen=True, eq=False)
class TestedRow:
    """A row of such a table: what it is called, and the images."""

    names: Sequence[str]
    test: DiagnosticTest


def performance_tables(
    rows: Sequence[TestedRow], names: Sequence[str], about: str, label: str, task: Task
) -> Iterator[ReportTable]:
    """At the threshold, or as the task calls where calls are known, and of the scores; `about` says
    of what, in the captions.
    """
    any_calls = task.has_thresholds or any(
        model.has_calls for row in rows for model in row.test.models
    )
    called = "at the thresholds chosen on validation images"
    if not task.has_thresholds:
        called = f"where {task.words.rule}"
    if any_calls:
        yield measures_table(
            rows,
            names,
            AT_THE_THRESHOLD,
            task=task,
            caption=f"{about}, {called}",
            note=THRESHOLD_NOTE,
            label=f"at-threshold-{label}",
        )
    yield measures_table(
        rows,
        names,
        WITHOUT_THRESHOLD,
        task=task,
        caption=f"{about}: discrimination and calibration of the scores",
        note=SCORES_NOTE,
        label=f"calibration-{label}",
    )


def measures_table(
    rows: Sequence[TestedRow],
    names: Sequence[str],
    measures: Mapping[str, Measure],
    *,
    task: Task,
    caption: str,
    note: str,
    label: str = "",
) -> ReportTable:
    """One row each, with its images by label, its prevalence, then each measure. Its names are in
    the first column, which wide tables repeat.
    """
    cells = []
    for row in rows:
        test = row.test
        images = test.positives + test.negatives
        prevalence = test.positives / images if images else np.nan
        counts = Cell(f"{test.positives:,} / {test.negatives:,}", test.positives)
        shown = Cell(f"{prevalence:.1%}", prevalence) if images else Cell("no label")
        measured = [_cell(test, measure) for measure in measures.values()]
        cells.append([Cell(", ".join(row.names)), counts, shown, *measured])
    header = [", ".join(names), task.words.labels.both_counts, "prevalence", *measures]
    return ReportTable(caption=caption, header=header, rows=cells, note=note, label=label)


def has_few(test: DiagnosticTest) -> bool:
    """Whether intervals say little, as there are few images of a label."""
    return min(test.positives, test.negatives) < FEW_FOR_AUC


def few_in_a_sentence(tests: Sequence[DiagnosticTest], task: Task) -> str:
    """What “too few” means, where it is written anywhere."""
    if not any(map(has_few, tests)):
        return ""
    few = task.words.labels.few.format(few=FEW_FOR_AUC)
    return f" “{TOO_FEW}” marks numbers of {few}: their intervals say little."


def _cell(test: DiagnosticTest, measure: Measure) -> Cell:
    measured = measure(test)
    if not measured.defined:
        return Cell(f"undefined ({_why_undefined(test, measure)})")
    interval = f" [{measured.low:.3f}, {measured.high:.3f}]" if np.isfinite(measured.low) else ""
    few = f", {TOO_FEW}" if has_few(test) else ""
    return Cell(f"{measured.value:.3f}{interval}{few}", measured.value)


def _why_undefined(test: DiagnosticTest, measure: Measure) -> str:
    """The counts that make it so."""
    if not test.sound:
        return "scores are no numbers"
    if measure in AT_THE_THRESHOLD.values() and not all(model.has_calls for model in test.models):
        return "no threshold"
    images = test.positives + test.negatives
    called = min(int(model.calls.sum()) for model in test.models)
    not_called = min(int((~model.calls).sum()) for model in test.models)
    if measure is DiagnosticTest.positive_predictive_value and images:
        return f"{called} of {images:,} called"
    if measure is DiagnosticTest.negative_predictive_value and images:
        return f"{not_called} of {images:,} not called"
    if test.positives and test.negatives:
        return "one label in some seed" if _one_label(test) else "scores separate the labels"
    return f"{test.positives:,} positive, {test.negatives:,} negative"


def _one_label(test: DiagnosticTest) -> bool:
    """Whether a model has images of one label only."""
    return any(not 0 < model.labels.sum() < len(model.labels) for model in test.models)

"""Findings: each is there or not, whatever the others are (multi-label). A sigmoid for each, binary
cross-entropy, and a threshold chosen on validation data for the largest geometric mean of
sensitivity and specificity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis import metrics
from feddraw.analysis.bootstrap import weighted_auc, weighted_gm
from feddraw.data.finding_counts import FINDING_WORDS
from feddraw.results.metrics import SplitMetrics
from feddraw.tasks import ComparedMetric, MeasuredSplit, Scores, Task, TaskWords, Truth

if TYPE_CHECKING:
    from feddraw.training.objective import Objective


SCRIPT = """\
def header(model):
    return [word for name in model["findings"] for word in (name, f"{name} call")]


def cells(model, scores):
    limits = [model["thresholds"][name] for name in model["findings"]]
    calls = ["" if limit is None else int(score >= limit) for score, limit in zip(scores, limits)]
    return [cell for pair in zip(scores, calls) for cell in pair]
"""


@dataclass(frozen=True)
class Findings(Task):
    """Any number of findings in an image, each called at a threshold of its own."""

    metrics: ClassVar = {
        "auc": ComparedMetric("AUC", weighted_auc, of_calls=False),
        "gm": ComparedMetric("GM", weighted_gm, of_calls=True),
    }
    words: ClassVar = TaskWords(
        labels=FINDING_WORDS,
        network="scores {images} for {count} findings",
        rule="a finding is called if its probability is at least the threshold",
        limits="thresholds depend on how common a finding is",
        results="Findings, thresholds and test results",
        counts=(
            "Columns of findings: images in which the finding is present, 0 also at a site that"
            " does not label it."
        ),
        metrics=(
            "AUC: area under the ROC curve; 0.5 is chance. GM: geometric mean of sensitivity and"
            " specificity on test images, at the threshold that was chosen on validation images."
        ),
        calls=(
            "A finding is called if its score is at least the threshold, which was chosen on"
            " validation images for the largest geometric mean (GM) of sensitivity and"
            " specificity."
        ),
    )
    has_thresholds: ClassVar = True
    can_be_recalibrated: ClassVar = True
    script: ClassVar = SCRIPT

    @property
    def objective(self) -> Objective:
        from feddraw.training.objective import PRESENCE

        return PRESENCE

    def choose_thresholds(self, scores: Scores, truth: Truth) -> list[float]:
        return metrics.choose_thresholds(scores, truth)

    def split_metrics(self, measured: MeasuredSplit) -> SplitMetrics:
        return metrics.split_metrics(
            areas=measured.areas,
            rates=measured.rates,
            thresholds=measured.thresholds,
            broken=measured.broken,
        )

    def call(self, scores: Scores, thresholds: Scores) -> NDArray[np.float64]:
        """Where a score reaches the finding's threshold."""
        called = (scores.astype(np.float64) >= thresholds).astype(np.float64)
        return np.where(np.isnan(thresholds) | np.isnan(scores), np.nan, called)

    def prediction_header(self, names: Sequence[str]) -> list[str]:
        header = []
        for name in names:
            header += [name, f"{name} call"]
        return header

    def prediction_cells(
        self, names: Sequence[str], scores: Scores, calls: NDArray[np.float64]
    ) -> list[object]:
        cells: list[object] = []
        for score, call in zip(scores, calls, strict=True):
            cells += ["" if np.isnan(score) else str(score), "" if np.isnan(call) else int(call)]
        return cells


def findings() -> Task:
    """Any number of findings in an image, each there or not (multi-label)."""
    return Findings()

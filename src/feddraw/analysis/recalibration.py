"""Recalibration: the line on the logit that makes scores probabilities again, by logistic
regression (Platt 1999), or through the origin (temperature; Guo et al. 2017).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.diagnostic_measures import (
    STEEPEST_SLOPE,
    DiagnosticTest,
    Floats,
    Labels,
    ModelScores,
    logistic_regression,
    probability_logits,
)
from feddraw.data.finding_counts import FEW_FOR_AUC
from feddraw.results.recalibration import PLATT, LogitLine


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of one finding, on images whose label is known, and whose images they are."""

    scores: Floats
    labels: Labels
    patients: NDArray[np.int64]

    def test(self, line: LogitLine) -> DiagnosticTest:
        """The same images, with scores that a line has changed; without a threshold."""
        changed = line.apply(self.scores).astype(np.float64)
        return DiagnosticTest([ModelScores(changed, self.labels, self.patients, np.nan)])


class NotFitted(ValueError):
    """Why there is no line, in words."""


def fit_line(scored: Scored, kind: str) -> LogitLine:
    """The line of largest likelihood; raises `NotFitted` where there is none that keeps the order
    of the scores.
    """
    positives = int(scored.labels.sum())
    negatives = len(scored.labels) - positives
    if min(positives, negatives) < FEW_FOR_AUC:
        raise NotFitted(
            f"{positives:,} positive and {negatives:,} negative validation images, where"
            f" {FEW_FOR_AUC} of each are needed"
        )
    if not np.isfinite(scored.scores).all():
        raise NotFitted("scores are no numbers")
    logits = probability_logits(scored.scores)
    constant = [np.ones(len(logits))] if kind == PLATT else []
    design = np.stack([*constant, logits], axis=1)
    coefficients, _ = logistic_regression(design, scored.labels, np.zeros(len(logits)))
    slope = float(coefficients[-1])
    if not abs(slope) < STEEPEST_SLOPE:
        raise NotFitted("scores separate the labels")
    if slope <= 0:
        raise NotFitted(f"the slope would be {slope:.2f}: higher scores are not likelier positive")
    return LogitLine(slope, float(coefficients[0]) if kind == PLATT else 0.0)

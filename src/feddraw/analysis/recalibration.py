"""Recalibration: the line on the logit that makes scores probabilities again, by logistic
regression (Platt 1999), or through the origin (temperature; Guo et al. 2017).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.diagnostic_measures import (
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
    if np.ptp(logits) == 0:
        raise NotFitted("all scores are alike")
    centre = float(logits.mean()) if kind == PLATT else 0.0
    # Scores of a young model differ by little: as they are, the fit would be too ill-conditioned.
    spread = float(np.sqrt(np.mean((logits - centre) ** 2)))
    standardised = (logits - centre) / spread
    _check_order(standardised, scored.labels, kind)
    constant = [np.ones(len(logits))] if kind == PLATT else []
    design = np.stack([*constant, standardised], axis=1)
    coefficients, _ = logistic_regression(design, scored.labels, np.zeros(len(logits)))
    slope = float(coefficients[-1]) / spread
    intercept = float(coefficients[0]) - slope * centre if kind == PLATT else 0.0
    if not (slope > 0 and np.isfinite(intercept)):
        raise NotFitted("no line of largest likelihood was found")
    return LogitLine(slope, intercept)


def _check_order(logits: Floats, labels: Labels, kind: str) -> None:
    """Refuse what has no line that rises, or none of finite slope."""
    expected = labels.mean() if kind == PLATT else 0.5  # where the slope is zero
    if np.dot(labels - expected, logits) <= 0:  # the likelihood does not grow with the slope
        raise NotFitted("higher scores are not likelier positive")
    lowest_positive = logits[labels == 1].min()
    highest_negative = logits[labels == 0].max()
    if kind == PLATT:
        separate = lowest_positive >= highest_negative
    else:
        separate = lowest_positive >= 0 >= highest_negative
    if separate:
        raise NotFitted("scores separate the labels")

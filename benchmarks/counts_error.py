"""How far measures from counts of scores are from those of the scores themselves.

    python -m benchmarks.counts_error --samples 100 --seed 1

Sites send counts of images by score instead of scores (`feddraw.flower.score_histograms`). Samples
are drawn, counted in the default bins, and measured both ways. Prints a Markdown table with the
largest differences. The calibration error has a column for each of two comparisons: with bins of
equal numbers whose borders are those of the counts, and with those of the single scores, where a
border may fall within a bin of the counts.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from feddraw.analysis.diagnostic_measures import (
    CALIBRATION_BINS,
    area_with_influences,
    bins_of_equal_numbers,
    brier_with_influences,
)
from feddraw.flower.score_histograms import count_by_score
from feddraw.results.score_counts import bin_scores

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
SIZES = (100, 300, 1_000, 5_000, 20_000)
PREVALENCES = (0.05, 0.3)


@dataclass(frozen=True)
class CountsError:
    """The difference of each measure, without sign."""

    auc: float
    brier: float
    calibration_error: float  # with the borders of the counts
    calibration_error_of_scores: float


def draw_scores(images: int, prevalence: float, rng: np.random.Generator) -> tuple[Floats, Labels]:
    """Scores that are not calibrated, in single precision as networks give them."""
    labels = (rng.random(images) < prevalence).astype(np.int64)
    labels[:2] = 0, 1
    evidence = 1.4 * labels + rng.standard_normal(images)
    logits = rng.choice([0.6, 1.0, 1.6]) * (1.4 * evidence - 1 + special.logit(prevalence))
    return special.expit(logits).astype(np.float32).astype(np.float64), labels


def counts_error(scores: Floats, labels: Labels) -> CountsError:
    """Of one sample."""
    counts = count_by_score(scores[:, None], labels[:, None].astype(np.float64))[:, 0]
    centres = bin_scores()
    counted_scores = np.concatenate([np.repeat(centres, of_label) for of_label in counts])
    counted_labels = np.repeat(np.arange(2), counts.sum(axis=1))
    middle = centres[np.searchsorted((centres[1:] + centres[:-1]) / 2, scores)]
    borders = bins_of_equal_numbers(middle)
    counted = _calibration_error(
        counted_scores, counted_labels, bins_of_equal_numbers(counted_scores)
    )
    return CountsError(
        auc=_difference(area_with_influences, scores, labels, counted_scores, counted_labels),
        brier=_difference(brier_with_influences, scores, labels, counted_scores, counted_labels),
        calibration_error=abs(counted - _calibration_error(scores, labels, borders)),
        calibration_error_of_scores=abs(
            counted - _calibration_error(scores, labels, bins_of_equal_numbers(scores))
        ),
    )


def _difference(measure, scores, labels, counted_scores, counted_labels) -> float:  # type: ignore[no-untyped-def]
    return float(abs(measure(scores, labels)[0] - measure(counted_scores, counted_labels)[0]))


def _calibration_error(scores: Floats, labels: Labels, bins: NDArray[np.intp]) -> float:
    residuals = np.bincount(bins, (scores - labels) / len(labels), CALIBRATION_BINS)
    return float(np.abs(residuals).sum())


def largest_errors(images: int, prevalence: float, samples: int, seed: int) -> CountsError:
    """Over so many samples."""
    rng = np.random.default_rng([seed, images])
    errors = [counts_error(*draw_scores(images, prevalence, rng)) for _ in range(samples)]
    return CountsError(
        auc=max(error.auc for error in errors),
        brier=max(error.brier for error in errors),
        calibration_error=max(error.calibration_error for error in errors),
        calibration_error_of_scores=max(error.calibration_error_of_scores for error in errors),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("| images | positive | AUC | Brier score | calibration error | same, borders of scores |")
    print("|---:|---:|---:|---:|---:|---:|")
    for images in SIZES:
        for prevalence in PREVALENCES:
            error = largest_errors(images, prevalence, options.samples, options.seed)
            print(
                f"| {images:,} | {prevalence:.0%} | {error.auc:.1e} | {error.brier:.1e} |"
                f" {error.calibration_error:.1e} | {error.calibration_error_of_scores:.1e} |"
            )


if __name__ == "__main__":
    main()

"""How often the intervals of a report's diagnostic measures hold the truth.

    python -m benchmarks.interval_coverage --samples 1000 --seed 1

Samples are drawn from populations whose truth is known from a very large sample, and each measure's
95 % interval is asked whether it holds it. Prints a Markdown table of percentages.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special

from feddraw.analysis.diagnostic_measures import DiagnosticTest, Measured, ModelScores

LARGE = 240_000  # images from which the truth is computed
CUT_AT = 0.6  # quantile of the scores at which images are called

MEASURES: Mapping[str, Callable[[DiagnosticTest], Measured]] = {
    "AUC": DiagnosticTest.auc,
    "PR-AUC": DiagnosticTest.average_precision,
    "sensitivity": DiagnosticTest.sensitivity,
    "specificity": DiagnosticTest.specificity,
    "PPV": DiagnosticTest.positive_predictive_value,
    "NPV": DiagnosticTest.negative_predictive_value,
    "Brier score": DiagnosticTest.brier_score,
    "calibration slope": DiagnosticTest.calibration_slope,
    "calibration intercept": DiagnosticTest.calibration_intercept,
    "calibration error": DiagnosticTest.calibration_error,
    "net benefit at 30 %": lambda test: test.net_benefit(0.3),
}


@dataclass(frozen=True)
class Population:
    """Two normal distributions of evidence, and scores made of it."""

    images: int
    prevalence: float
    separation: float  # of the two means, in standard deviations
    images_per_patient: int = 1  # which share half of the variance and the label
    score_slope: float = 1.0  # logit of the score over that of the true probability
    score_intercept: float = 0.0

    @property
    def name(self) -> str:
        positives = round(self.images * self.prevalence)
        patients = self.images // self.images_per_patient
        of = "" if self.images_per_patient == 1 else f" of {patients} patients"
        calibrated = self.score_slope == 1 and self.score_intercept == 0
        return (
            f"{positives} of {self.images} positive{of}, AUC {self.area:.2f},"
            f" {'calibrated' if calibrated else 'not calibrated'}"
        )

    @property
    def area(self) -> float:
        return float(special.ndtr(self.separation / np.sqrt(2)))

    def draw(self, images: int, rng: np.random.Generator, cut: float) -> DiagnosticTest:
        """Some patients, each with a label by the prevalence."""
        patients = images // self.images_per_patient
        labels = (rng.random(patients) < self.prevalence).astype(np.int64)
        labels = labels.repeat(self.images_per_patient)
        noise = rng.standard_normal(len(labels))
        if self.images_per_patient > 1:
            shared = rng.standard_normal(patients).repeat(self.images_per_patient)
            noise = np.sqrt(0.5) * (noise + shared)
        evidence = self.separation * labels + noise
        true_logit = self.separation * evidence - self.separation**2 / 2
        true_logit += special.logit(self.prevalence)
        scores = special.expit(self.score_intercept + self.score_slope * true_logit)
        owners = np.arange(patients).repeat(self.images_per_patient)
        return DiagnosticTest([ModelScores(scores, labels, owners, cut)])


POPULATIONS = (
    Population(images=100, prevalence=0.5, separation=1.2),
    Population(images=100, prevalence=0.5, separation=2.0, score_slope=0.6, score_intercept=0.5),
    Population(images=500, prevalence=0.1, separation=1.2),
    Population(
        images=240,
        prevalence=0.25,
        separation=1.2,
        images_per_patient=3,
        score_slope=1.4,
        score_intercept=0.4,
    ),
)


def coverage(population: Population, samples: int, rng: np.random.Generator) -> dict[str, float]:
    """By measure, the share of samples whose interval holds the truth."""
    large = population.draw(LARGE, rng, cut=0.5)
    cut = float(np.quantile(large.models[0].scores, CUT_AT))
    large = population.draw(LARGE, rng, cut)
    truth = {name: measure(large).value for name, measure in MEASURES.items()}
    held = dict.fromkeys(MEASURES, 0)
    for _ in range(samples):
        test = population.draw(population.images, rng, cut)
        for name, measure in MEASURES.items():
            measured = measure(test)
            held[name] += measured.low <= truth[name] <= measured.high
    return {name: count / samples for name, count in held.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    columns = {}
    for number, population in enumerate(POPULATIONS):
        rng = np.random.default_rng([options.seed, number])
        columns[population.name] = coverage(population, options.samples, rng)
    print("| measure |", *(f"{name} |" for name in columns))
    print("|---|", *("---:|" for _ in columns))
    for name in MEASURES:
        print(f"| {name} |", *(f"{100 * column[name]:.1f} |" for column in columns.values()))


if __name__ == "__main__":
    main()

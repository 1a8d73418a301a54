"""How well a model's scores serve as a diagnostic test of one finding, each measure with a 95 %
interval over patients.

A measure of images gives its value and the influence of each image: how fast the value changes with
the image's weight. Influences are summed by patient, and the variance of these sums is that of the
measure (the infinitesimal jackknife; for the AUC this is DeLong's variance, by patient as in
Obuchowski 1997, and for a calibration slope the cluster-robust one). Intervals are Student's t on
the logit scale for what lies between 0 and 1, and on its own scale otherwise. Proportions have Korn
and Graubard's interval, which is Clopper and Pearson's exact one where no patient has two images.

Several seeds are several models: a measure is computed for each and averaged, and a patient's
influences in all of them are added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from feddraw.analysis.statistics import proportion_interval
from feddraw.results.recalibration import SMALLEST_PROBABILITY

Floats = NDArray[np.float64]
Labels = NDArray[np.integer[Any]]  # 1 or 0
Patients = NDArray[np.int64]
# Of scores and labels: the value, and the influence of each image.
Measure = Callable[[Floats, Labels], tuple[float, Floats]]

CONFIDENCE = 0.95
CALIBRATION_BINS = 10
REPLICATES = 1_000  # of the bootstrap, for the one measure that has no influences
REPLICATES_AT_A_TIME = 100
MOST_DRAWN = 10_000_000  # numbers of patients at a time, in all replicates together
FAR_BINS = 0.975  # quantile of the replicates, for 95 % coverage also with 100 images
# Newton's method for two coefficients: steps, and the change at which it has arrived.
MOST_NEWTON_STEPS = 50
NEWTON_TOLERANCE = 1e-10
STEEPEST_SLOPE = 1e3  # beyond it the scores separate the labels


@dataclass(frozen=True)
class Measured:
    """A value with its interval; NaN where it is not defined."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def defined(self) -> bool:
        return math.isfinite(self.value)


UNDEFINED = Measured(math.nan)


@dataclass(frozen=True, eq=False)
class ModelScores:
    """One model's probabilities of one finding, on the images whose label is known."""

    scores: Floats
    labels: Labels
    patients: Patients  # whose image each is; numbers are the same for all models
    threshold: float  # NaN where there is none
    # 1 or 0 by image, where calls are made in another way than by the threshold
    called: Floats | None = None

    @staticmethod
    def of_known(
        scores: Floats,
        truth: Labels,
        patients: Patients,
        threshold: float,
        called: Floats | None = None,
    ) -> ModelScores:
        """Without the images whose label is not known (below zero)."""
        known = truth >= 0
        called = None if called is None else called[known]
        return ModelScores(scores[known], truth[known], patients[known], threshold, called)

    @property
    def calls(self) -> NDArray[np.bool_]:
        return np.asarray(
            self.scores >= self.threshold if self.called is None else self.called == 1
        )

    @property
    def has_calls(self) -> bool:
        """Whether it is known which images are called."""
        if self.called is None:
            return not math.isnan(self.threshold)
        return not bool(np.isnan(self.called).any())


@dataclass(frozen=True, eq=False)
class DiagnosticTest:
    """One finding, as the models of one method (one per seed) score it."""

    models: Sequence[ModelScores]

    @property
    def positives(self) -> int:
        """Images with the finding, in the first seed."""
        return int(self.models[0].labels.sum())

    @property
    def negatives(self) -> int:
        return len(self.models[0].labels) - self.positives

    @cached_property
    def sound(self) -> bool:
        """Whether every score is a finite number."""
        return all(np.isfinite(model.scores).all() for model in self.models)

    # ------------------------------------------------------------------------------- without a cut

    def auc(self) -> Measured:
        return self._between_0_and_1(area_with_influences)

    def average_precision(self) -> Measured:
        """The area under the precision-recall curve, as scikit-learn computes it."""
        return self._between_0_and_1(average_precision_with_influences)

    def brier_score(self) -> Measured:
        measured = self._on_its_scale(brier_with_influences)
        return replace(measured, low=0.0) if measured.low < 0 else measured

    def calibration_slope(self) -> Measured:
        """Of a logistic regression of the label on the logit of the score; 1 is ideal, less means
        scores that are too extreme.
        """
        return self._on_its_scale(slope_with_influences)

    def calibration_intercept(self) -> Measured:
        """Calibration in the large: the logit that must be added to all scores so that their mean
        is the prevalence; 0 is ideal, below 0 means scores that are too high.
        """
        return self._on_its_scale(intercept_with_influences)

    def calibration_error(self) -> Measured:
        """The expected calibration error: over the bins, the mean difference between score and
        label, without its sign, weighted by images.

        As a sum of absolute values it is too high in a small sample, and its bootstrap replicates
        are higher still. So its interval is wider than a percentile interval: no calibration
        error is farther from the measured one than the bins' differences are from theirs, summed
        without sign, and the bootstrap gives how far that is (its quantile at `FAR_BINS`, as
        replicates of few patients are a little too close).
        """
        if not self.sound or not all(len(model.labels) for model in self.models):
            return UNDEFINED
        owners = np.unique(np.concatenate([model.patients for model in self.models]))
        by_patient = []  # of each model: patients × bins, shares of the sum over all images
        for model in self.models:
            bins = bins_of_equal_numbers(model.scores)
            residuals = (model.scores - model.labels) / len(model.labels) / len(self.models)
            place = np.searchsorted(owners, model.patients) * CALIBRATION_BINS + bins
            sums = np.bincount(place, residuals, len(owners) * CALIBRATION_BINS)
            by_patient.append(sums.reshape(len(owners), CALIBRATION_BINS))
        differences = np.concatenate(by_patient, axis=1)
        value = float(np.abs(differences.sum(axis=0)).sum())
        rng = np.random.default_rng(0)
        even = np.full(len(owners), 1 / len(owners))
        distances: list[float] = []
        at_a_time = max(1, min(REPLICATES_AT_A_TIME, MOST_DRAWN // len(owners)))
        for start in range(0, REPLICATES, at_a_time):
            count = min(at_a_time, REPLICATES - start)
            drawn = rng.multinomial(len(owners), even, size=count)
            moved = (drawn - 1.0) @ differences
            distances += np.abs(moved).sum(axis=1).tolist()
        reach = float(np.quantile(distances, FAR_BINS))
        return Measured(value, max(0.0, value - reach), value + reach)

    def net_benefit(self, threshold: float) -> Measured:
        """Of treating those whose score reaches a threshold, in true positives per image, when a
        false positive weighs threshold / (1 − threshold) (Vickers and Elkin 2006).
        """
        return self._on_its_scale(partial(net_benefit_with_influences, threshold=threshold))

    # --------------------------------------------------------------------- at the chosen threshold

    def sensitivity(self) -> Measured:
        return self._proportion(lambda model: (model.calls, model.labels == 1))

    def specificity(self) -> Measured:
        return self._proportion(lambda model: (~model.calls, model.labels == 0))

    def positive_predictive_value(self) -> Measured:
        return self._proportion(lambda model: (model.labels == 1, model.calls))

    def negative_predictive_value(self) -> Measured:
        return self._proportion(lambda model: (model.labels == 0, ~model.calls))

    # ----------------------------------------------------------------------------------- intervals

    def _value_and_error(self, measure: Measure) -> tuple[float, float, int]:
        """Mean over the models, its standard error over patients, and how many patients there are;
        NaN where it is not defined for one of the models.
        """
        if not self.sound:
            return math.nan, math.nan, 0
        values = []
        influences = []
        for model in self.models:
            value, influence = measure(model.scores, model.labels)
            values.append(value)
            influences.append(influence)
        owners = np.concatenate([model.patients for model in self.models])
        numbers, place = np.unique(owners, return_inverse=True)
        by_patient = np.bincount(place, np.concatenate(influences), len(numbers)) / len(self.models)
        count = len(numbers)
        if count < 2:
            return float(np.mean(values)), math.nan, count
        variance = float((by_patient**2).sum()) * count / (count - 1)
        return float(np.mean(values)), math.sqrt(variance), count

    def _on_its_scale(self, measure: Measure) -> Measured:
        value, error, patients = self._value_and_error(measure)
        if not math.isfinite(value) or not math.isfinite(error):
            return Measured(value)
        reach = _student(patients) * error
        return Measured(value, value - reach, value + reach)

    def _between_0_and_1(self, measure: Measure) -> Measured:
        value, error, _ = self._value_and_error(measure)
        if not math.isfinite(value) or not math.isfinite(error):
            return Measured(value)
        # The patients of the rarer label decide how well the variance is known.
        pairs = min(self._patients_with(1), self._patients_with(0))
        if not 0 < value < 1:
            # Of n independent pairs of a positive and a negative patient all are ranked right with
            # probability AUC^n: the exact bound of a proportion that was never missed.
            low, high = proportion_interval(pairs * round(value), pairs, CONFIDENCE)
            return Measured(value, low, high)
        if pairs < 2:
            return Measured(value)
        reach = _student(pairs) * error / (value * (1 - value))
        logit = special.logit(value)
        return Measured(value, *map(float, special.expit([logit - reach, logit + reach])))

    def _patients_with(self, label: int) -> int:
        model = self.models[0]
        return len(np.unique(model.patients[model.labels == label]))

    def _proportion(
        self, select: Callable[[ModelScores], tuple[NDArray[np.bool_], NDArray[np.bool_]]]
    ) -> Measured:
        """The share of some images among others, with Korn and Graubard's interval: `select` gives
        which images have the property, and among which it is asked.
        """
        if not self.sound or not all(model.has_calls for model in self.models):
            return UNDEFINED
        hits = []
        trials = []
        owners = []
        for model in self.models:
            having, among = select(model)
            hits.append((having & among).astype(np.float64))
            trials.append(among.astype(np.float64))
            owners.append(model.patients)
        _, place = np.unique(np.concatenate(owners), return_inverse=True)
        hits_by_patient = _sums_by_patient(place, hits)
        trials_by_patient = _sums_by_patient(place, trials)
        total = float(trials_by_patient.sum())
        if not total:
            return UNDEFINED
        share = float(hits_by_patient.sum()) / total
        size = _effective_size(hits_by_patient, trials_by_patient, share)
        low, high = proportion_interval(share * size, size, CONFIDENCE)
        return Measured(share, low, high)


def _sums_by_patient(place: NDArray[np.intp], by_model: Sequence[Floats]) -> Floats:
    """Numbers of all models' images, added up by the patient at each image's place."""
    return np.bincount(place, np.concatenate(by_model)).astype(np.float64)


def _student(patients: int) -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, patients - 1))


def _effective_size(hits: Floats, trials: Floats, share: float) -> float:
    """How many independent images say as much as those of these patients: never more than there are
    images, and never fewer than one a patient where the share is 0 or 1.
    """
    images = float(trials.sum())
    patients = int((trials > 0).sum())
    if trials.max() <= 1:
        return images
    if not 0 < share < 1 or patients < 2:
        return float(patients)
    residuals = hits - share * trials
    variance = float((residuals**2).sum()) * patients / (patients - 1) / images**2
    if variance == 0:
        return float(patients)
    return min(images, share * (1 - share) / variance)


# ------------------------------------------------------------------------ measures with influences


def area_with_influences(scores: Floats, labels: Labels) -> tuple[float, Floats]:
    """The AUC; an image's influence is DeLong's component, less the AUC."""
    positive = labels == 1
    positives = int(positive.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return math.nan, np.zeros(len(labels))
    ranks = stats.rankdata(scores)
    won = np.empty(len(labels))
    within_positives = stats.rankdata(scores[positive])
    within_negatives = stats.rankdata(scores[~positive])
    won[positive] = (ranks[positive] - within_positives) / negatives
    won[~positive] = 1 - (ranks[~positive] - within_negatives) / positives
    area = float(won[positive].mean())
    counts = np.where(positive, positives, negatives)
    return area, (won - area) / counts


def average_precision_with_influences(scores: Floats, labels: Labels) -> tuple[float, Floats]:
    """Average precision: the mean, over positive images, of the precision at their score."""
    positives = int(labels.sum())
    if not positives or positives == len(labels):
        return math.nan, np.zeros(len(labels))
    values, place = np.unique(scores, return_inverse=True)
    positives_at = np.bincount(place, labels, len(values))
    images_at = np.bincount(place, minlength=len(values)).astype(np.float64)
    positives_above = np.cumsum(positives_at[::-1])[::-1]  # at a score or above
    images_above = np.cumsum(images_at[::-1])[::-1]
    precision = positives_above / images_above
    average = float((positives_at * precision).sum() / positives)
    # One more image at a score changes the precision at all scores that are not higher.
    by_positive = np.cumsum(positives_at / images_above)[place]
    by_image = np.cumsum(positives_at * precision / images_above)[place]
    own = labels * (precision[place] - average)
    return average, (own + labels * by_positive - by_image) / positives


def brier_with_influences(scores: Floats, labels: Labels) -> tuple[float, Floats]:
    """The mean squared difference of probability and label."""
    return _mean_with_influences((scores - labels) ** 2)


def net_benefit_with_influences(
    scores: Floats, labels: Labels, *, threshold: float
) -> tuple[float, Floats]:
    """True positives per image, less false ones times threshold / (1 − threshold)."""
    called = scores >= threshold
    odds = threshold / (1 - threshold)
    return _mean_with_influences(np.where(labels == 1, 1.0, -odds) * called)


def _mean_with_influences(values: Floats) -> tuple[float, Floats]:
    if not len(values):
        return math.nan, values
    mean = float(values.mean())
    return mean, (values - mean) / len(values)


def slope_with_influences(scores: Floats, labels: Labels) -> tuple[float, Floats]:
    """The calibration slope."""
    logits = probability_logits(scores)
    design = np.stack([np.ones(len(logits)), logits], axis=1)
    coefficients, influences = logistic_regression(design, labels, np.zeros(len(logits)))
    slope = float(coefficients[1])
    if not abs(slope) < STEEPEST_SLOPE:
        return math.nan, np.zeros(len(logits))
    return slope, influences[:, 1]


def intercept_with_influences(scores: Floats, labels: Labels) -> tuple[float, Floats]:
    """Calibration in the large: the intercept at a slope of one."""
    logits = probability_logits(scores)
    coefficients, influences = logistic_regression(np.ones((len(logits), 1)), labels, logits)
    return float(coefficients[0]), influences[:, 0]


def probability_logits(scores: Floats) -> Floats:
    """Logits of probabilities; those of 0 and 1 are finite."""
    clipped = np.clip(scores, SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY)
    return np.asarray(special.logit(clipped))


def logistic_regression(design: Floats, labels: Labels, offset: Floats) -> tuple[Floats, Floats]:
    """The coefficients of largest likelihood, and the influence of each image on them; NaN where
    there is no largest one (one label only, or labels that the scores separate).
    """
    width = design.shape[1]
    nothing = np.full(width, np.nan), np.zeros(design.shape)
    if labels.min(initial=1) == labels.max(initial=0):
        return nothing
    coefficients = np.zeros(width)
    for _ in range(MOST_NEWTON_STEPS):
        expected = special.expit(design @ coefficients + offset)
        information = design.T @ (design * (expected * (1 - expected))[:, None])
        gradient = design.T @ (labels - expected)
        if np.linalg.matrix_rank(information) != width:
            return nothing
        step = np.linalg.solve(information, gradient)
        # Far from the solution a whole step may lead away from it.
        coefficients = coefficients + step / max(1.0, float(np.abs(step).max()) / 5)
        if np.abs(step).max() < NEWTON_TOLERANCE * max(1.0, float(np.abs(coefficients).max())):
            residuals = labels - special.expit(design @ coefficients + offset)
            return coefficients, np.linalg.solve(information, (design * residuals[:, None]).T).T
    return nothing


# ----------------------------------------------------------------------------------------- in bins


@dataclass(frozen=True)
class ReliabilityBin:
    """Some images with neighbouring scores."""

    images: int
    mean_score: float
    share: float  # of positive images


def bins_of_equal_numbers(scores: Floats) -> NDArray[np.intp]:
    """The bin of each image, in order of the scores: as equal numbers of images as equal scores,
    which share a bin, allow.
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    before = np.cumsum(counts) - counts
    bin_of_value = (before + counts / 2) * CALIBRATION_BINS // len(scores)
    return np.minimum(bin_of_value, CALIBRATION_BINS - 1).astype(np.intp)[place]


def reliability_bins(scores: Floats, labels: Labels) -> list[ReliabilityBin]:
    """The images of a reliability diagram."""
    bins = bins_of_equal_numbers(scores)
    return [
        ReliabilityBin(
            images=int(chosen.sum()),
            mean_score=float(scores[chosen].mean()),
            share=float(labels[chosen].mean()),
        )
        for chosen in (bins == number for number in np.unique(bins))
    ]


# ----------------------------------------------------------------------------------------- curves


def precision_recall_curve(scores: Floats, labels: Labels) -> tuple[Floats, Floats] | None:
    """Recall and precision at every threshold, from the highest on; None without positives."""
    positives = int(labels.sum())
    if not positives:
        return None
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    found = np.cumsum(labels[order])[ends]
    return found / positives, found / (ends + 1)


def net_benefit_of_all(labels: Labels, thresholds: Sequence[float]) -> Iterator[float]:
    """The net benefit of calling every image positive."""
    prevalence = float(labels.mean())
    for threshold in thresholds:
        yield prevalence - (1 - prevalence) * threshold / (1 - threshold)

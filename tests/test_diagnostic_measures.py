"""Measures of a diagnostic test: scikit-learn and statsmodels are the referees."""

import math

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score
from statsmodels.stats.proportion import proportion_confint

from feddraw.analysis.diagnostic_measures import (
    CALIBRATION_BINS,
    DiagnosticTest,
    ModelScores,
    area_with_influences,
    average_precision_with_influences,
    bins_of_equal_numbers,
    brier_with_influences,
    net_benefit_of_all,
    precision_recall_curve,
    probability_logits,
    reliability_bins,
)

PATIENTS = 150


def scored_images(seed=0, images=240):
    """Scores with ties, labels, and patients of whom some have several images."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(images) < 0.3).astype(np.int64)
    scores = 1 / (1 + np.exp(1 - 1.2 * labels - rng.standard_normal(images)))
    return np.round(scores, 2), labels, rng.integers(0, PATIENTS, images)


def one_test(scores, labels, patients, threshold=0.4):
    return DiagnosticTest([ModelScores(scores, labels, patients, threshold)])


REFEREES = {
    area_with_influences: roc_auc_score,
    average_precision_with_influences: average_precision_score,
    brier_with_influences: brier_score_loss,
}


@pytest.mark.parametrize("measure", REFEREES, ids=lambda measure: measure.__name__)
def test_a_value_is_scikit_learns_and_an_influence_its_change_with_an_images_weight(measure):
    referee = REFEREES[measure]
    scores, labels, _ = scored_images()
    value, influences = measure(scores, labels)
    assert value == pytest.approx(referee(labels, scores), abs=1e-12)
    assert influences.sum() == pytest.approx(0, abs=1e-12)
    step = 1e-6
    for image in range(0, len(labels), 17):
        weights = np.ones(len(labels))
        weights[image] += step
        change = referee(labels, scores, sample_weight=weights) - value
        assert influences[image] == pytest.approx(change / step, abs=1e-7)


def test_calibration_is_that_of_a_logistic_regression_with_errors_by_patient():
    scores, labels, patients = scored_images()
    test = one_test(scores, labels, patients)
    logits = probability_logits(scores)
    slope = sm.GLM(labels, sm.add_constant(logits), family=sm.families.Binomial()).fit(
        cov_type="cluster", cov_kwds={"groups": patients, "use_correction": False}
    )
    large = sm.GLM(
        labels, np.ones((len(labels), 1)), offset=logits, family=sm.families.Binomial()
    ).fit(cov_type="cluster", cov_kwds={"groups": patients, "use_correction": False})
    count = len(np.unique(patients))
    reach = stats.t.ppf(0.975, count - 1) * math.sqrt(count / (count - 1))
    for measured, value, error in (
        (test.calibration_slope(), slope.params[1], slope.bse[1]),
        (test.calibration_intercept(), large.params[0], large.bse[0]),
    ):
        assert measured.value == pytest.approx(value, rel=1e-6)
        assert measured.high - measured.value == pytest.approx(reach * error, rel=1e-4)
        assert measured.value - measured.low == pytest.approx(reach * error, rel=1e-4)


def test_scores_that_separate_the_labels_have_no_calibration_slope():
    scores, labels = np.array([0.1, 0.2, 0.8, 0.9]), np.array([0, 0, 1, 1])
    test = one_test(scores, labels, np.arange(4))
    assert not test.calibration_slope().defined
    assert test.calibration_intercept().defined


def test_proportions_of_patients_with_one_image_have_clopper_and_pearsons_interval():
    scores, labels, _ = scored_images()
    test = one_test(scores, labels, np.arange(len(labels)))
    called = scores >= 0.4
    for measured, hits, among in (
        (test.sensitivity(), called, labels == 1),
        (test.specificity(), ~called, labels == 0),
        (test.positive_predictive_value(), labels == 1, called),
        (test.negative_predictive_value(), labels == 0, ~called),
    ):
        count = int((hits & among).sum())
        low, high = proportion_confint(count, int(among.sum()), method="beta")
        assert measured.value == pytest.approx(count / among.sum())
        assert (measured.low, measured.high) == pytest.approx((low, high))


def test_a_proportion_that_was_never_missed_is_not_certain():
    """Eighteen positive images that are all called: sensitivity 1, and not an interval from 1 to
    1.
    """
    labels = np.repeat([1, 0], [18, 50])
    scores = np.where(labels == 1, 0.9, 0.1)
    sensitivity = one_test(scores, labels, np.arange(68)).sensitivity()
    assert sensitivity.value == sensitivity.high == 1
    assert sensitivity.low == pytest.approx(0.025 ** (1 / 18))
    area = one_test(scores, labels, np.arange(68)).auc()
    assert (area.value, area.high) == (1, 1)
    assert area.low == pytest.approx(0.025 ** (1 / 18))


def test_images_of_the_same_patient_are_not_independent():
    """Every image four times, as four images of its patient: the intervals stay as they were."""
    scores, labels, _ = scored_images()
    patients = np.arange(len(labels))
    once = one_test(scores, labels, patients)
    often = one_test(*(np.repeat(column, 4) for column in (scores, labels, patients)))
    for measure in (
        DiagnosticTest.auc,
        DiagnosticTest.brier_score,
        DiagnosticTest.calibration_slope,
        DiagnosticTest.calibration_error,
    ):
        single = measure(once)
        repeated = measure(often)
        assert repeated.value == pytest.approx(single.value, abs=1e-9)
        assert repeated.high - repeated.low == pytest.approx(single.high - single.low, rel=0.02)
    single, repeated = once.sensitivity(), often.sensitivity()
    assert repeated.high - repeated.low == pytest.approx(single.high - single.low, rel=0.02)


def test_seeds_are_averaged_and_a_patient_of_several_seeds_is_one_patient():
    scores, labels, patients = scored_images()
    model = ModelScores(scores, labels, patients, 0.4)
    once, twice = DiagnosticTest([model]), DiagnosticTest([model, model])
    for measure in (DiagnosticTest.auc, DiagnosticTest.sensitivity, DiagnosticTest.brier_score):
        assert measure(twice).low == pytest.approx(measure(once).low, abs=1e-9)
    other = ModelScores(scores[::-1].copy(), labels, patients, 0.4)
    mean = np.mean([roc_auc_score(labels, scores), roc_auc_score(labels, scores[::-1])])
    assert DiagnosticTest([model, other]).auc().value == pytest.approx(mean)


def test_the_calibration_error_is_over_bins_of_equal_numbers():
    scores, labels, _ = scored_images(images=200)
    scores = scores + np.random.default_rng(1).random(200) * 1e-4  # without ties
    bins = np.array_split(np.argsort(scores), CALIBRATION_BINS)
    errors = [abs(scores[rows].mean() - labels[rows].mean()) for rows in bins]
    measured = one_test(scores, labels, np.arange(200)).calibration_error()
    assert measured.value == pytest.approx(np.mean(errors))
    assert 0 <= measured.low < measured.value < measured.high
    assert [each.images for each in reliability_bins(scores, labels)] == [20] * CALIBRATION_BINS
    assert set(bins_of_equal_numbers(np.full(7, 0.5))) == {5}  # equal scores share a bin


def test_net_benefit_weighs_false_positives_by_the_odds_of_the_threshold():
    scores = np.array([0.1, 0.3, 0.3, 0.6, 0.9])
    labels = np.array([0, 1, 0, 0, 1])
    benefit = one_test(scores, labels, np.arange(5)).net_benefit(0.2)
    assert benefit.value == pytest.approx((2 - 2 * 0.25) / 5)
    assert list(net_benefit_of_all(labels, [0.2])) == pytest.approx([0.4 - 0.6 * 0.25])


def test_precision_and_recall_end_at_the_prevalence():
    scores, labels, _ = scored_images()
    recall, precision = precision_recall_curve(scores, labels)
    assert recall[-1] == 1
    assert precision[-1] == pytest.approx(labels.mean())
    steps = np.diff(np.concatenate([[0], recall]))
    assert (steps * precision).sum() == pytest.approx(average_precision_score(labels, scores))


def test_scores_that_are_not_numbers_give_no_measure():
    scores, labels, patients = scored_images()
    scores[3] = math.nan
    test = one_test(scores, labels, patients)
    assert not any(
        measured.defined
        for measured in (
            test.auc(),
            test.sensitivity(),
            test.calibration_error(),
            test.brier_score(),
        )
    )


def test_without_a_threshold_there_are_no_proportions():
    test = one_test(*scored_images(), threshold=math.nan)
    assert not test.sensitivity().defined
    assert test.auc().defined

"""Metrics against scikit-learn, and thresholds against trying every one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, roc_auc_score

from feddraw.analysis.metrics import (
    auc,
    best_threshold,
    choose_thresholds,
    macro,
    mean_of,
    rates,
)
from feddraw.tasks.findings import findings

evaluate = findings().evaluate

unhurried = settings(deadline=None)  # a busy machine is no mistake

# few distinct scores, so that ties are the rule
tied = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1)), min_size=2, max_size=40).filter(
    lambda pairs: len({label for _, label in pairs}) == 2
)


def columns(pairs):
    scores, truth = np.array(pairs).T
    return scores.astype(np.float32) / 8, truth


def candidates(scores):
    values = np.unique(scores.astype(np.float64))
    return [-math.inf, *((values[1:] + values[:-1]) / 2), math.inf]


@unhurried
@given(tied)
def test_auc_is_scikit_learns_also_with_ties(pairs):
    scores, truth = columns(pairs)
    assert auc(scores, truth) == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)


def test_auc_of_many_continuous_scores_is_scikit_learns():
    rng = np.random.default_rng(0)
    truth = (rng.random(20_000) < 0.03).astype(np.int8)
    scores = rng.normal(truth, 1).astype(np.float32)
    assert auc(scores, truth) == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)


@unhurried
@given(tied, st.integers(-1, 8))
def test_rates_are_scikit_learns_and_a_score_at_the_threshold_is_positive(pairs, threshold):
    scores, truth = columns(pairs)
    called = scores >= threshold / 8
    (true_negative, false_positive), (false_negative, true_positive) = confusion_matrix(
        truth, called, labels=[0, 1]
    )
    sensitivity, specificity = rates(scores, truth, threshold / 8)
    assert sensitivity == pytest.approx(true_positive / (true_positive + false_negative))
    assert specificity == pytest.approx(true_negative / (true_negative + false_positive))


@unhurried
@given(tied)
def test_the_threshold_is_the_middle_one_of_the_best(pairs):
    scores, truth = columns(pairs)
    tried = [(t, math.prod(rates(scores, truth, t))) for t in candidates(scores)]
    top = max(gm for _, gm in tried)
    best = [t for t, gm in tried if gm == pytest.approx(top, abs=1e-12)]
    assert best_threshold(scores, truth) == best[(len(best) - 1) // 2]


def test_of_two_equally_good_thresholds_it_is_the_lower_and_of_three_the_middle():
    truth = np.array([0, 1, 0, 1])
    scores = np.array([1, 2, 3, 4], np.float32)  # 1.5 gives 1 · 1/2, 3.5 gives 1/2 · 1, 2.5 less
    assert best_threshold(scores, truth) == 1.5
    truth = np.array(
        [0, 1, 1, 1, 0, 1, 0, 1, 1]
    )  # 1.5 gives 6/6 · 1/3, 5.5 gives 3/6 · 2/3, 7.5 gives 2/6 · 3/3
    assert best_threshold(np.arange(1, 10, dtype=np.float32), truth) == 5.5
    assert (
        best_threshold(np.full(4, 0.5, np.float32), np.array([0, 1, 0, 1])) == -math.inf
    )  # ±inf, both with GM 0


def test_when_scores_only_mislead_all_candidates_are_equal_and_the_middle_one_is_taken():
    scores, truth = (
        np.array([1, 2, 3], np.float32),
        np.array([1, 0, 0]),
    )  # GM is 0 at -inf, 1.5, 2.5 (tie) and inf
    tried = [math.prod(rates(scores, truth, t)) for t in candidates(scores)]
    assert tried == [0, 0, 0, 0]
    assert best_threshold(scores, truth) == 1.5


def test_a_threshold_between_neighbouring_float32_scores_keeps_them_apart():
    low = np.float32(0.9)
    scores, truth = np.array([low, np.nextafter(low, np.float32(1))]), np.array([0, 1])
    assert rates(scores, truth, best_threshold(scores, truth)) == (1, 1)


@pytest.mark.parametrize("label", [0, 1])
def test_a_finding_with_one_label_only_is_undefined(label):
    scores, truth = np.array([0.1, 0.9], np.float32), np.array([label, label])
    assert math.isnan(auc(scores, truth))
    assert math.isnan(best_threshold(scores, truth))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [slice(None), 0, 5])
def test_a_score_that_is_no_finite_number_leaves_no_metric_of_its_finding(bad, place):
    scores, truth = (
        np.array([0.9, 0.8, 0.7, 0.3, 0.2, 0.1], np.float32),
        np.array([1, 1, 1, 0, 0, 0]),
    )
    scores[place] = bad
    assert math.isnan(auc(scores, truth))
    assert math.isnan(best_threshold(scores, truth))
    assert all(map(math.isnan, rates(scores, truth, 0.5)))


def test_a_finding_with_a_broken_score_is_named_and_the_others_keep_their_values():
    scores, truth, classes = table()
    thresholds = choose_thresholds(scores, truth)
    before = evaluate(scores, truth, classes, thresholds)
    scores[7, 1] = math.nan
    found = evaluate(scores, truth, classes, thresholds)
    assert (found.undefined, found.not_finite) == (("Effusion",), ("Effusion",))
    for metric in ("auc", "gm"):
        values = found.of(metric).per_class
        assert math.isnan(values["Effusion"])
        assert values["Edema"] == before.of(metric).per_class["Edema"]
        assert found.of(metric).macro == pytest.approx((values["Edema"] + values["Nodule"]) / 2)
    assert math.isnan(found.sensitivity["Effusion"])
    assert math.isnan(found.specificity["Effusion"])


def table(classes=("Edema", "Effusion", "Nodule"), images=60):
    rng = np.random.default_rng(3)
    truth = (rng.random((images, len(classes))) < 0.4).astype(np.int8)
    return rng.normal(truth).astype(np.float32), truth, classes


def test_evaluate_holds_what_metrics_json_promises():
    scores, truth, classes = table()
    found = evaluate(scores, truth, classes, choose_thresholds(scores, truth))
    names = ["auc", "gm", "sensitivity", "specificity", "thresholds", "undefined"]
    assert list(found.document()) == names
    assert found.auc.macro == pytest.approx(roc_auc_score(truth, scores, average="macro"))
    assert list(found.auc.per_class) == list(classes)
    for c, name in enumerate(classes):
        threshold = found.thresholds[name]
        sensitivity, specificity = rates(scores[:, c], truth[:, c], threshold)
        assert (found.sensitivity[name], found.specificity[name]) == (
            sensitivity,
            specificity,
        )
        assert found.gm.per_class[name] == pytest.approx(math.sqrt(sensitivity * specificity))
    assert found.gm.macro == pytest.approx(np.mean(list(found.gm.per_class.values())))
    assert found.undefined == ()


def test_an_undefined_finding_is_named_and_left_out_of_the_mean():
    scores, truth, classes = table()
    truth[:, 1] = 0
    found = evaluate(scores, truth, classes, choose_thresholds(scores, truth))
    assert found.undefined == ("Effusion",)
    for metric in ("auc", "gm"):
        values = found.of(metric).per_class
        assert math.isnan(values["Effusion"])
        assert found.of(metric).macro == pytest.approx((values["Edema"] + values["Nodule"]) / 2)


def test_a_finding_without_threshold_from_validation_has_an_auc_but_no_gm():
    scores, truth, classes = table()
    found = evaluate(scores, truth, classes, [0.5, math.nan, 0.5])
    assert found.auc.per_class["Effusion"] == pytest.approx(
        roc_auc_score(truth[:, 1], scores[:, 1])
    )
    assert math.isnan(found.gm.per_class["Effusion"])
    assert math.isnan(found.sensitivity["Effusion"])
    assert found.undefined == ("Effusion",)


def test_when_no_finding_is_defined_there_is_no_mean_either():
    assert math.isnan(macro([math.nan, math.nan]))
    assert macro([0.25, math.nan, 0.75]) == 0.5


def test_of_several_models_a_finding_is_undefined_where_it_is_so_for_all_of_them():
    scores, truth, classes = table()
    without = [truth.copy(), truth.copy()]
    without[0][:, 1] = without[1][:, 1] = without[1][:, 2] = 0
    one, other = (evaluate(scores, of, classes, choose_thresholds(scores, of)) for of in without)
    found = mean_of([one, other])
    assert (one.undefined, other.undefined) == (("Effusion",), ("Effusion", "Nodule"))
    assert mean_of([other, one]).undefined == found.undefined == ("Effusion",)
    assert found.auc.per_class["Nodule"] == one.auc.per_class["Nodule"]
    assert found.thresholds == {}


def test_of_clients_own_models_a_finding_counts_for_those_that_label_it():
    """The second client labels the first finding only, and nobody the third; every finding counts
    alike in the macro mean.
    """
    scores, truth, classes = table()
    limits = choose_thresholds(scores, truth)
    one, other = (evaluate(given, truth, classes, limits) for given in (scores, 1 - scores))
    first, second, third = classes
    found = mean_of([one, other], [np.array([True, True, False]), np.array([True, False, False])])
    assert found.auc.per_class[first] == pytest.approx(0.5)  # of a model and its mirror
    assert found.auc.per_class[second] == one.auc.per_class[second]
    assert found.auc.per_class[third] == pytest.approx(0.5)
    assert found.auc.macro == pytest.approx(np.mean([0.5, one.auc.per_class[second], 0.5]))
    assert found.sensitivity[second] == one.sensitivity[second]
    assert mean_of([one, other], [None, None]) == mean_of([one, other])

"""AUC, sensitivity, specificity and their geometric mean GM, with thresholds chosen on validation.
Pure numpy.

A finding that all images or no image of a split show has no AUC and no GM: it is NaN here, left out
of the mean, and named as undefined. So is a finding with a score that is not a finite number, as a
diverged model gives. A label below zero is unknown: the image is left out for that finding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.results.metrics import MacroMetric, SplitMetrics

Scores = NDArray[np.floating[Any]]  # (images,) or (images, findings)
Truth = NDArray[np.integer[Any]]  # 1, 0, and below zero where a label is not known
ROC_GRID = np.linspace(0, 1, 101)  # of false alarms


def of_known(scores: Scores, truth: Truth) -> tuple[Scores, Truth]:
    """The images of which one finding's label is known."""
    known = truth >= 0
    return (scores, truth) if known.all() else (scores[known], truth[known])


def auc(scores: Scores, truth: Truth) -> float:
    """The chance that a positive image scores above a negative one; ties count half."""
    scores, truth = of_known(scores, truth)
    positives = int(truth.sum())
    negatives = len(truth) - positives
    if not positives or not negatives or not np.isfinite(scores).all():
        return math.nan
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]  # equal scores share their mean rank
    return float(
        (ranks[truth == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives)
    )


def rates(scores: Scores, truth: Truth, threshold: float) -> tuple[float, float]:
    """Sensitivity and specificity; an image is called positive if its score reaches the
    threshold.
    """
    scores, truth = of_known(scores, truth)
    if math.isnan(threshold) or not np.isfinite(scores).all():
        return math.nan, math.nan
    # in float32 a midpoint of neighbours is one of them
    called = scores.astype(np.float64) >= threshold
    positive = truth == 1
    sensitivity = float(called[positive].mean()) if positive.any() else math.nan
    specificity = float((~called[~positive]).mean()) if (~positive).any() else math.nan
    return sensitivity, specificity


def best_threshold(scores: Scores, truth: Truth) -> float:
    """The threshold with the largest GM; candidates lie midway between neighbouring scores, and
    beyond both ends.

    Of several equally good ones it is the middle one, the lower of two middle ones.
    """
    scores, truth = of_known(scores, truth)
    positives = int(truth.sum())
    negatives = len(truth) - positives
    if not positives or not negatives or not np.isfinite(scores).all():
        return math.nan
    values, inverse = np.unique(scores.astype(np.float64), return_inverse=True)
    per_value = np.bincount(inverse, minlength=len(values))
    positives_below = np.concatenate(
        [[0], np.cumsum(np.bincount(inverse, truth, len(values)))]
    ).astype(np.int64)
    negatives_below = np.concatenate([[0], np.cumsum(per_value)]) - positives_below
    candidates = np.concatenate([[-np.inf], (values[1:] + values[:-1]) / 2, [np.inf]])
    products = (positives - positives_below) * negatives_below  # proportional to GM², and exact
    best = np.flatnonzero(products == products.max())
    return float(candidates[best[(len(best) - 1) // 2]])


def split_metrics(
    areas: Mapping[str, float],
    rates: Mapping[str, tuple[float, float]],
    thresholds: Mapping[str, float],
    broken: Sequence[str],
) -> SplitMetrics:
    """From AUC, sensitivity with specificity, and threshold by finding; `broken` are the findings
    with scores that are not finite.
    """
    means = {
        finding: math.sqrt(sensitivity * specificity)
        for finding, (sensitivity, specificity) in rates.items()
    }
    return SplitMetrics(
        auc=MacroMetric(macro(areas.values()), areas),
        gm=MacroMetric(macro(means.values()), means),
        sensitivity={finding: sensitivity for finding, (sensitivity, _) in rates.items()},
        specificity={finding: specificity for finding, (_, specificity) in rates.items()},
        thresholds=thresholds,
        undefined=tuple(
            finding for finding in areas if math.isnan(areas[finding]) or math.isnan(means[finding])
        ),
        not_finite=tuple(broken),
    )


def not_finite(scores: Scores) -> list[int]:
    """The findings of which a score is not a finite number."""
    return np.flatnonzero(~np.isfinite(scores).all(axis=0)).tolist()


def mean_of(
    splits: Sequence[SplitMetrics], labelled: Sequence[NDArray[np.bool_] | None] = ()
) -> SplitMetrics:
    """The mean of several models' metrics, number by number; what is undefined in one is left out
    of its mean.

    `labelled` says by model which findings its client labels (None: all). A finding counts for the
    models of these clients only: the others' outputs for it were never trained. A mean threshold or
    confusion matrix would mean nothing, so there is none.
    """
    counted = _models_by_finding(splits, labelled)
    return SplitMetrics(
        auc=_mean_metric([split.auc for split in splits], counted),
        gm=_mean_metric([split.gm for split in splits], counted),
        sensitivity=_mean_by_finding([split.sensitivity for split in splits], counted),
        specificity=_mean_by_finding([split.specificity for split in splits], counted),
        undefined=_in_all([split.undefined for split in splits], counted),
        not_finite=_in_all([split.not_finite for split in splits], counted),
        more={
            name: _mean_metric([split.more[name] for split in splits], counted)
            for name in splits[0].more
        },
    )


def _models_by_finding(
    splits: Sequence[SplitMetrics], labelled: Sequence[NDArray[np.bool_] | None]
) -> dict[str, list[int]]:
    """The numbers of the models whose clients label a finding; all models where no client does."""
    everyone = list(range(len(splits)))
    counted = {}
    for column, finding in enumerate(splits[0].findings):
        labelling = [m for m, of in enumerate(labelled) if of is None or of[column]]
        counted[finding] = labelling or everyone
    return counted


def _mean_metric(
    metrics: Sequence[MacroMetric], counted: Mapping[str, Sequence[int]]
) -> MacroMetric:
    per_class = _mean_by_finding([metric.per_class for metric in metrics], counted)
    if per_class and any(len(models) < len(metrics) for models in counted.values()):
        # every finding counts alike, however many clients label it
        return MacroMetric(macro=macro(per_class.values()), per_class=per_class)
    return MacroMetric(macro=macro(metric.macro for metric in metrics), per_class=per_class)


def _mean_by_finding(
    tables: Sequence[Mapping[str, float]], counted: Mapping[str, Sequence[int]]
) -> dict[str, float]:
    everyone = range(len(tables))
    return {
        finding: macro(tables[model][finding] for model in counted.get(finding, everyone))
        for finding in tables[0]
    }


def _in_all(
    lists: Sequence[Sequence[str]], counted: Mapping[str, Sequence[int]]
) -> tuple[str, ...]:
    """The findings that are listed for each of the models that count for them."""
    return tuple(
        finding
        for finding, models in counted.items()
        if all(finding in lists[model] for model in models)
    )


def choose_thresholds(scores: Scores, truth: Truth) -> list[float]:
    """One threshold per finding, chosen on validation data."""
    return [best_threshold(scores[:, c], truth[:, c]) for c in range(truth.shape[1])]


def macro(values: Iterable[float]) -> float:
    """The mean over the findings for which there is a value."""
    defined = [value for value in values if not math.isnan(value)]
    return float(np.mean(defined)) if defined else math.nan


def roc_curve(scores: Scores, truth: Truth) -> NDArray[np.float64] | None:
    """Sensitivity on a grid of false alarms, over known labels; None without both kinds of
    image.
    """
    scores, truth = of_known(scores, truth)
    positive = truth == 1
    if positive.all() or not positive.any():
        return None
    order = np.argsort(-scores, kind="stable")
    # equal scores are called together
    ends = np.append(np.flatnonzero(np.diff(-scores[order])), len(order) - 1)
    sensitivity = np.concatenate([[0], np.cumsum(positive[order])[ends] / positive.sum()])
    alarms = np.concatenate([[0], np.cumsum(~positive[order])[ends] / (~positive).sum()])
    return np.asarray(np.interp(ROC_GRID, alarms, sensitivity))

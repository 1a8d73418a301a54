"""AUC, sensitivity, specificity and their geometric mean GM, with thresholds chosen on validation.
Pure numpy.

A finding that all images or no image of a split show has no AUC and no GM: it is NaN here, left out
of the mean, and named as undefined. So is a finding with a score that is not a finite number, as a
diverged model gives. A label below zero is unknown: the image is left out for that finding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    called = (
        scores.astype(np.float64) >= threshold
    )  # in float32 a midpoint of neighbours is one of them
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


def evaluate(
    scores: Scores, truth: Truth, findings: Sequence[str], thresholds: Sequence[float]
) -> dict[str, Any]:
    """All metrics of one split, as `metrics.json` holds them."""
    columns = range(len(findings))
    areas = {
        name: auc(scores[:, c], truth[:, c]) for c, name in zip(columns, findings, strict=True)
    }
    pairs = {
        name: rates(scores[:, c], truth[:, c], thresholds[c])
        for c, name in zip(columns, findings, strict=True)
    }
    chosen = dict(zip(findings, map(float, thresholds), strict=True))
    return metrics_table(areas, pairs, chosen, [findings[c] for c in not_finite(scores)])


def metrics_table(
    areas: dict[str, float],
    pairs: Mapping[str, tuple[float, float]],
    thresholds: dict[str, float],
    broken: Sequence[str],
) -> dict[str, Any]:
    """AUC, sensitivity with specificity, and threshold by finding, as `metrics.json` holds them."""
    means = {name: math.sqrt(se * sp) for name, (se, sp) in pairs.items()}
    return {
        "auc": {"macro": macro(areas.values()), "per_class": areas},
        "gm": {"macro": macro(means.values()), "per_class": means},
        "sensitivity": {name: pair[0] for name, pair in pairs.items()},
        "specificity": {name: pair[1] for name, pair in pairs.items()},
        "thresholds": thresholds,
        "undefined": [name for name in areas if math.isnan(areas[name]) or math.isnan(means[name])],
        "not_finite": list(broken),
    }


def not_finite(scores: Scores) -> list[int]:
    """The findings of which a score is not a finite number."""
    return np.flatnonzero(~np.isfinite(scores).all(axis=0)).tolist()


def mean_of(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of several tables of metrics, number by number; what is undefined in one is left out
    of its mean.

    A mean threshold would mean nothing, so there is none.
    """
    found: dict[str, Any] = {}
    for name, first in tables[0].items():
        column = [table[name] for table in tables]
        if name == "thresholds":
            found[name] = {}
        elif isinstance(first, Mapping):
            found[name] = mean_of(column)
        elif isinstance(first, list):
            found[name] = [item for item in first if all(item in other for other in column)]
        else:
            found[name] = macro(column)
    return found


def choose_thresholds(scores: Scores, truth: Truth) -> list[float]:
    """One threshold per finding, chosen on validation data."""
    return [best_threshold(scores[:, c], truth[:, c]) for c in range(truth.shape[1])]


def macro(values: Any) -> float:
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
    ends = np.append(
        np.flatnonzero(np.diff(-scores[order])), len(order) - 1
    )  # equal scores are called together
    sensitivity = np.concatenate([[0], np.cumsum(positive[order])[ends] / positive.sum()])
    alarms = np.concatenate([[0], np.cumsum(~positive[order])[ends] / (~positive).sum()])
    return np.asarray(np.interp(ROC_GRID, alarms, sensitivity))

"""A second computation of a report's diagnostic measures, from the files of a run: it imports
nothing of feddraw, takes values from scikit-learn and numpy, and intervals from numerical
derivatives by a patient's weight.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

STEP = 1e-5  # of a patient's weight
BINS = 10  # of the calibration error


@dataclass(frozen=True)
class Images:
    """Scores and labels of one finding, and whose images they are."""

    scores: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    patients: np.ndarray[Any, Any]
    threshold: float


Number = tuple[float, float, float]  # a value and its interval
Weighted = Callable[[Images, np.ndarray[Any, Any]], float]


def parts_of_run(folder: Path, split: str = "test") -> Iterator[tuple[str, str, str, Images]]:
    """Grouping, value, finding and images of every cell; "all" for all images."""
    with safe_open(folder / "predictions.safetensors", "np") as file:
        notes = json.loads(file.metadata()["feddraw"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    metrics = json.loads((folder / "metrics.json").read_text())
    scores = arrays[f"{split}.scores"].astype(np.float64)
    truth = arrays[f"{split}.truth"]
    patients = arrays[f"{split}.patients"]
    for number, group in enumerate(notes["groups"]):
        places = arrays[f"{split}.group.{number}"]
        masks = {"all": np.ones(len(places), dtype=bool)}
        masks |= {value: places == place for place, value in enumerate(group["values"])}
        masks["not stated"] = places < 0
        for value, mask in masks.items():
            for column, finding in enumerate(notes["classes"]):
                known = mask & (truth[:, column] >= 0)
                if mask.any():
                    images = Images(
                        scores[known, column],
                        truth[known, column].astype(int),
                        patients[known],
                        metrics["test"]["thresholds"][finding],
                    )
                    yield group["name"], value, finding, images


def measures(images: Images) -> dict[str, Number]:
    """Every number of a row of the report; NaN where it is not defined."""
    labels = images.labels
    called = images.scores >= images.threshold
    positive = labels == 1
    numbers = {
        "sensitivity": _proportion(images, called, positive),
        "specificity": _proportion(images, ~called, ~positive),
        "PPV": _proportion(images, positive, called),
        "NPV": _proportion(images, ~positive, ~called),
        "calibration error": _calibration_error(images),
    }
    both = 0 < labels.sum() < len(labels)
    nothing = (math.nan, math.nan, math.nan)
    for name, weighted, bounded in (
        ("AUC", _auc, True),
        ("PR-AUC", _average_precision, True),
        ("calibration slope", _slope, False),
        ("calibration intercept", _intercept, False),
    ):
        numbers[name] = _with_interval(images, weighted, bounded) if both else nothing
    value, low, high = _with_interval(images, _brier, False) if len(labels) else nothing
    numbers["Brier score"] = (value, max(0.0, low), high)
    return numbers


def net_benefit(images: Images, threshold: float) -> Number:
    """With a false positive weighed by the odds of the threshold."""

    def weighted(some: Images, weights: np.ndarray[Any, Any]) -> float:
        gain = np.where(some.labels == 1, 1.0, -threshold / (1 - threshold))
        return float(np.average(gain * (some.scores >= threshold), weights=weights))

    if not len(images.labels):
        return math.nan, math.nan, math.nan
    return _with_interval(images, weighted, False)


# ------------------------------------------------------------------------------------- the values


def _auc(images: Images, weights: np.ndarray[Any, Any]) -> float:
    return float(roc_auc_score(images.labels, images.scores, sample_weight=weights))


def _average_precision(images: Images, weights: np.ndarray[Any, Any]) -> float:
    return float(average_precision_score(images.labels, images.scores, sample_weight=weights))


def _brier(images: Images, weights: np.ndarray[Any, Any]) -> float:
    if len(set(images.labels.tolist())) < 2:  # scikit-learn wants both labels named
        return float(np.average((images.scores - images.labels) ** 2, weights=weights))
    return float(brier_score_loss(images.labels, images.scores, sample_weight=weights))


def _logits(images: Images) -> np.ndarray[Any, Any]:
    clipped = np.clip(images.scores, 1e-7, 1 - 1e-7)
    return np.log(clipped / (1 - clipped))


def _slope(images: Images, weights: np.ndarray[Any, Any]) -> float:
    fit = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12, max_iter=200)
    fit.fit(_logits(images)[:, None], images.labels, sample_weight=weights)
    return float(fit.coef_[0, 0])


def _intercept(images: Images, weights: np.ndarray[Any, Any]) -> float:
    """The shift at which the weighted mean score is the prevalence, by halving."""
    logits = _logits(images)
    prevalence = np.average(images.labels, weights=weights)
    low, high = -40.0, 40.0
    for _ in range(80):
        middle = (low + high) / 2
        mean = np.average(1 / (1 + np.exp(-logits - middle)), weights=weights)
        low, high = (middle, high) if mean < prevalence else (low, middle)
    return (low + high) / 2


# ---------------------------------------------------------------------------------- the intervals


def _with_interval(images: Images, weighted: Weighted, bounded: bool) -> Number:
    """The value; the variance is the sum of squared derivatives by the patients' weights."""
    ones = np.ones(len(images.labels))
    value = weighted(images, ones)
    owners = np.unique(images.patients)
    slopes = []
    for owner in owners:
        step = STEP * (images.patients == owner)
        change = weighted(images, ones + step) - weighted(images, ones - step)
        slopes.append(change / (2 * STEP))
    count = len(owners)
    error = math.sqrt(sum(slope**2 for slope in slopes) * count / (count - 1))
    if not bounded:
        reach = stats.t.ppf(0.975, count - 1) * error
        return value, value - reach, value + reach
    with_label = [len(np.unique(images.patients[images.labels == label])) for label in (0, 1)]
    rarer = min(with_label)
    if value in (0, 1):
        low = 0.025 ** (1 / rarer) if value else 0.0
        return value, low, 1.0 if value else 1 - 0.025 ** (1 / rarer)
    if rarer < 2:
        return value, math.nan, math.nan
    logit = math.log(value / (1 - value))
    reach = stats.t.ppf(0.975, rarer - 1) * error / (value * (1 - value))
    return value, 1 / (1 + math.exp(reach - logit)), 1 / (1 + math.exp(-reach - logit))


def _proportion(
    images: Images, having: np.ndarray[Any, Any], among: np.ndarray[Any, Any]
) -> Number:
    """Clopper and Pearson's, with Korn and Graubard's number of images."""
    if not among.any():
        return math.nan, math.nan, math.nan
    value = float(having[among].mean())
    owners, trials = np.unique(images.patients[among], return_counts=True)
    size = float(trials.sum())
    if trials.max() > 1:
        residuals = [
            (having[of] - value).sum() for of in (among & (images.patients == o) for o in owners)
        ]
        variance = float(np.square(residuals).sum()) / trials.sum() ** 2
        variance *= len(owners) / max(1, len(owners) - 1)
        simple = 0 < value < 1 and len(owners) > 1 and variance > 0
        size = min(size, value * (1 - value) / variance) if simple else float(len(owners))
    hits = value * size
    low = stats.beta.ppf(0.025, hits, size - hits + 1) if value > 0 else 0.0
    high = stats.beta.ppf(0.975, hits + 1, size - hits) if value < 1 else 1.0
    return value, float(low), float(high)


def _calibration_error(images: Images) -> Number:
    """Over bins of equal numbers, equal scores in one bin; reach by a bootstrap over patients."""
    images_there = len(images.labels)
    if not images_there:
        return math.nan, math.nan, math.nan
    order = stats.rankdata(images.scores, "average") - 0.5
    bins = np.minimum(order * BINS // images_there, BINS - 1).astype(int)
    residual = (images.scores - images.labels) / images_there
    owners, place = np.unique(images.patients, return_inverse=True)
    sums = np.zeros((len(owners), BINS))
    np.add.at(sums, (place, bins), residual)
    value = float(np.abs(sums.sum(axis=0)).sum())
    rng = np.random.default_rng(0)
    reaches: list[float] = []
    for _ in range(10):
        drawn = rng.multinomial(len(owners), np.full(len(owners), 1 / len(owners)), size=100)
        reaches += np.abs((drawn - 1.0) @ sums).sum(axis=1).tolist()
    reach = float(np.quantile(reaches, 0.975))
    return value, max(0.0, value - reach), value + reach

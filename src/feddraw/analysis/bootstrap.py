"""Bootstrap over patients: confidence intervals of AUC and GM, and of their differences between
models.

A replicate draws as many patients as there are, with replacement, and takes all images of each. No
image is copied for that: a replicate is a row of weights, how often each image was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Truth = NDArray[np.integer[Any]]  # 1, 0, and below zero where a label is not known
Indices = NDArray[np.intp]
Folds = Sequence[Indices]  # the images of each fold
# Of a finding's outputs and truth (images) and weights (replicates × images): one value per row.
Measure = Callable[[Floats, Truth, Floats], Floats]
# Of a finding's outputs and truth: one number, for measures that have no form with weights.
PlainMeasure = Callable[[Floats, Truth], float]

# From this many test images on, a replicate is computed from each image's component of the measure.
LARGE = 5_000
# A product of matrices with ten columns takes four times as long by column as one with so many.
_COLUMNS_OF_PRODUCT = 200
# Replicates that are computed together: their weights for some thousand images stay small.
_REPLICATES_AT_A_TIME = 100


@dataclass(frozen=True)
class Interval:
    """An estimate with a percentile bootstrap interval."""

    estimate: float
    low: float
    high: float
    replicates: int  # that had a value


# ----------------------------------------------------------------------------------- the resampling


def bootstrap(
    outputs: Sequence[Floats],
    truth: Truth,
    rng: np.random.Generator,
    *,
    measure: Measure | None = None,
    patients: ArrayLike | None = None,
    folds: ArrayLike | None = None,
    replicates: int = 2000,
    on_drawn: Callable[[int], None] = lambda drawn: None,
) -> Floats:
    """The macro AUC (or another measure) of several models on the same images: an array of
    (models, 1 + replicates).

    `outputs` has each model's scores (or calls) and `truth` the labels, both (images, findings).
    `patients` says whose each image is; without it, each image is drawn by itself. `folds` numbers
    the parts of the images that are measured apart and averaged, such as repeats. `on_drawn` is
    told after some replicates how many there are.

    The first column is the estimate; in each of the others all models have the same patients drawn.
    So differences of rows are paired, and any number of pairs costs no more than the models
    themselves. With `LARGE` images or more a replicate's AUC is that of DeLong's components, which
    differs from it by far less than the replicates do.
    """
    measure = measure or weighted_auc
    models = [np.asarray(output, dtype=np.float64).reshape(len(truth), -1) for output in outputs]
    truth = truth.reshape(len(truth), -1)
    unit_of_image = _units(patients, len(truth))
    units = int(unit_of_image.max()) + 1
    fold_of_image = np.zeros(len(truth)) if folds is None else np.asarray(folds)
    by_fold = [np.flatnonzero(fold_of_image == fold) for fold in np.unique(fold_of_image)]
    everybody_once = np.ones((1, units))
    draws = chain([everybody_once], _draws(units, replicates, rng, on_drawn))
    if measure in _COMPONENTS and min(map(len, by_fold)) >= LARGE:
        sums = _component_sums(_COMPONENTS[measure], models, truth, unit_of_image, by_fold)
        return _macro_of_components(_COMPONENTS[measure], sums, draws, len(models))
    blocks = []
    for drawn in draws:
        weights = drawn[:, unit_of_image]
        values = [_macro_of_replicates(measure, model, truth, weights, by_fold) for model in models]
        blocks.append(np.stack(values))
    return np.concatenate(blocks, axis=1)


def bootstrap_by_copies(
    measure: PlainMeasure,
    outputs: Floats,
    truth: Truth,
    rng: np.random.Generator,
    *,
    patients: ArrayLike | None = None,
    replicates: int,
) -> Floats:
    """The replicates of a measure that cannot take weights, such as a chosen threshold: an array of
    (replicates,), from one finding's outputs and truth with each image as often as it was drawn.
    """
    unit_of_image = _units(patients, len(truth))
    images = np.arange(len(truth))
    values = []
    for drawn in _draws(int(unit_of_image.max()) + 1, replicates, rng):
        for counts in drawn.astype(np.intp):
            copies = np.repeat(images, counts[unit_of_image])
            values.append(measure(outputs[copies], truth[copies]))
    return np.array(values)


def interval(values: Floats, confidence: float = 0.95) -> Interval:
    """Of an estimate and its replicates, as a row of `bootstrap` has them."""
    estimate = float(values[0])
    defined = values[1:][~np.isnan(values[1:])]
    if not len(defined):
        return Interval(estimate, math.nan, math.nan, 0)
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
    return Interval(estimate, low, high, len(defined))


def _units(patients: ArrayLike | None, images: int) -> Indices:
    """Which unit each image is drawn with: its patient, numbered from 0, or itself."""
    if patients is None:
        return np.arange(images)
    return np.asarray(np.unique(np.asarray(patients), return_inverse=True)[1])


def _draws(
    units: int,
    replicates: int,
    rng: np.random.Generator,
    on_drawn: Callable[[int], None] = lambda drawn: None,
) -> Iterator[Floats]:
    """How often each unit is drawn, one row per replicate, in blocks."""
    for start in range(0, replicates, _REPLICATES_AT_A_TIME):
        count = min(_REPLICATES_AT_A_TIME, replicates - start)
        chosen = rng.integers(units, size=(count, units))
        yield np.stack([np.bincount(row, minlength=units) for row in chosen]).astype(np.float64)
        on_drawn(start + count)  # whoever took the block is done with it


def _macro_of_replicates(
    measure: Measure, outputs: Floats, truth: Truth, weights: Floats, by_fold: Folds
) -> Floats:
    """Mean over folds and findings, for each row of weights; what is undefined or unknown (below
    zero) is left out.
    """
    values = []
    for fold, finding in product(by_fold, range(truth.shape[1])):
        rows = fold[truth[fold, finding] >= 0]
        if len(rows):
            values.append(measure(outputs[rows, finding], truth[rows, finding], weights[:, rows]))
        else:
            values.append(np.full(len(weights), np.nan))
    return mean_of_defined(np.stack(values), axis=0)


def mean_of_defined(values: Floats, axis: int) -> Floats:
    """Along an axis, without what is NaN; NaN where nothing is left."""
    defined = ~np.isnan(values)
    return _divided_or_nan(np.where(defined, values, 0.0).sum(axis), defined.sum(axis))


def _divided_or_nan(totals: Floats, counts: NDArray[Any]) -> Floats:
    """NaN where there is nothing to divide by."""
    nothing = np.full(totals.shape, np.nan)
    return np.asarray(np.divide(totals, counts, out=nothing, where=counts > 0))


# ------------------------------------------------------------------------------------- the measures


def weighted_auc(scores: Floats, truth: Truth, weights: Floats) -> Floats:
    """The AUC for each row of weights (replicates × images); ties count half.

    NaN without both kinds of image, or where a score is not a number.
    """
    if np.isnan(scores).any():
        return np.full(len(weights), np.nan)
    positive = truth == 1
    order = np.argsort(scores[~positive], kind="stable")
    negative_scores = scores[~positive][order]
    by_image = weights.T  # images × replicates
    positive_weights = by_image[positive]
    negative_weights = by_image[np.flatnonzero(~positive)[order]]
    nothing = np.zeros((1, len(weights)))
    # in row k: the weight of the k negatives with the lowest scores
    below = np.concatenate([nothing, np.cumsum(negative_weights, axis=0)])
    lower = np.searchsorted(negative_scores, scores[positive], "left")
    not_higher = np.searchsorted(negative_scores, scores[positive], "right")
    won = np.einsum("ij,ij->j", positive_weights, below[lower] + below[not_higher]) / 2
    pairs = positive_weights.sum(axis=0) * below[-1]
    return _divided_or_nan(won, pairs)


def weighted_gm(called: Floats, truth: Truth, weights: Floats) -> Floats:
    """The geometric mean of sensitivity and specificity of calls (0 or 1) for each row of weights.

    Without a threshold there are no calls: NaN.
    """
    if np.isnan(called).any():
        return np.full(len(weights), np.nan)
    positive = truth == 1
    right = called == truth
    kinds = np.stack([positive & right, positive, ~positive & right, ~positive], axis=1)
    true_positives, positives, true_negatives, negatives = (weights @ kinds.astype(np.float64)).T
    sensitivity = _divided_or_nan(true_positives, positives)
    specificity = _divided_or_nan(true_negatives, negatives)
    return np.sqrt(sensitivity * specificity)


def weighted_sensitivity(called: Floats, truth: Truth, weights: Floats) -> Floats:
    """The share of positive images that are called (1, not 0) for each row of weights; the mean
    over classes is the balanced accuracy.
    """
    if np.isnan(called).any():
        return np.full(len(weights), np.nan)
    positive = truth == 1
    kinds = np.stack([positive & (called == 1), positive], axis=1)
    true_positives, positives = (weights @ kinds.astype(np.float64)).T
    return _divided_or_nan(true_positives, positives)


# ------------------------------------------------------------------------------ many images at once


@dataclass(frozen=True)
class _Components:
    """A measure that is made of the mean over positive images of one number each, and the mean over
    negative images of another.
    """

    of_images: Callable[[Floats, Truth], tuple[Floats, Floats]]  # of positives, of negatives
    combine: Callable[[Floats, Floats], Floats]  # the two means to the measure


def _auc_components(scores: Floats, truth: Truth) -> tuple[Floats, Floats]:
    """DeLong's: for each positive image the share of negatives below it, for each negative that of
    positives above; less half the AUC each, so that the sum of their means is the AUC.
    """
    positives = scores[truth == 1]
    negatives = scores[truth == 0]
    if not len(positives) or not len(negatives) or np.isnan(scores).any():
        return np.full(len(positives), np.nan), np.full(len(negatives), np.nan)
    negatives_below = _share_below(negatives, positives)
    positives_above = 1 - _share_below(positives, negatives)
    area = negatives_below.mean()
    return negatives_below - area / 2, positives_above - area / 2


def _share_below(scores: Floats, limits: Floats) -> Floats:
    """Of the scores, the share below each limit; equal ones count half."""
    sorted_scores = np.sort(scores)
    order = np.argsort(limits)  # limits in order are found several times faster
    below = np.searchsorted(sorted_scores, limits[order], "left")
    not_above = np.searchsorted(sorted_scores, limits[order], "right")
    share = np.empty(len(limits))
    share[order] = (below + not_above) / (2 * len(scores))
    return share


def _gm_components(called: Floats, truth: Truth) -> tuple[Floats, Floats]:
    """Which positive and which negative images are called as they are."""
    right = np.where(np.isnan(called).any(), np.nan, called == truth)
    return right[truth == 1], right[truth == 0]


def _gm_of_rates(sensitivity: Floats, specificity: Floats) -> Floats:
    return np.sqrt(sensitivity * specificity)


_COMPONENTS: dict[Measure, _Components] = {
    weighted_auc: _Components(_auc_components, np.add),
    weighted_gm: _Components(_gm_components, _gm_of_rates),
}


def _component_sums(
    components: _Components,
    models: Sequence[Floats],
    truth: Truth,
    unit_of_image: Indices,
    by_fold: Folds,
) -> Floats:
    """Components summed by unit, so that a replicate is a product of matrices: (units, columns).

    For each fold and finding there are the columns of its positive images, then those of its
    negative ones: how many the unit has, and the sum of each model's components.
    """
    units = int(unit_of_image.max()) + 1
    columns = []
    for fold, finding in product(by_fold, range(truth.shape[1])):
        labels = truth[fold, finding]
        by_model = [components.of_images(model[fold, finding], labels) for model in models]
        for place, label in enumerate((1, 0)):
            owners = unit_of_image[fold[labels == label]]
            columns.append(np.bincount(owners, np.ones(len(owners)), units))
            columns += [np.bincount(owners, parts[place], units) for parts in by_model]
    return np.stack(columns, axis=1)


def _macro_of_components(
    components: _Components, sums: Floats, draws: Iterable[Floats], models: int
) -> Floats:
    """The mean over folds and findings of every model in every replicate, (models, replicates)."""
    width = 1 + models  # columns of one kind of image of a finding
    step = width * max(1, _COLUMNS_OF_PRODUCT // width)
    blocks = [np.ascontiguousarray(sums[:, i : i + step]) for i in range(0, sums.shape[1], step)]
    values = []
    for drawn in draws:
        totals = np.concatenate([drawn @ block for block in blocks], axis=1)
        totals = totals.reshape(len(drawn), -1, width)
        counts = np.broadcast_to(totals[:, :, :1], totals[:, :, 1:].shape)
        means = _divided_or_nan(totals[:, :, 1:], counts)
        values.append(components.combine(means[:, ::2], means[:, 1::2]))
    by_fold_and_finding = np.concatenate(values)  # replicates, folds and findings, models
    return mean_of_defined(by_fold_and_finding, axis=1).T

"""Bootstrap over patients: confidence intervals of AUC and GM, and of their differences between
models.
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
Truth = NDArray[np.integer[Any]]
Indices = NDArray[np.intp]
Folds = Sequence[Indices]  # the images of each
Measure = Callable[
    [Floats, Truth, Floats], Floats
]  # of outputs, truth and weights: a value for each row of weights
LARGE = (
    5_000  # test images from which on a replicate is computed from each image's part in the measure
)
_PRODUCT_COLUMNS = (
    200  # columns of a product of matrices: one of ten takes four times as long by column
)
_REPLICATES_AT_A_TIME = (
    100  # bootstrap replicates at a time: a block of a few thousand images stays small
)


@dataclass(frozen=True)
class Interval:
    """An estimate with a percentile bootstrap interval."""

    estimate: float
    low: float
    high: float
    replicates: int  # that had a value


def bootstrap(
    outputs: Sequence[Floats],
    truth: Truth,
    rng: np.random.Generator,
    *,
    measure: Measure | None = None,
    patients: ArrayLike | None = None,
    folds: ArrayLike | None = None,
    replicates: int = 2000,
) -> Floats:
    """The macro AUC (or another measure) of several models on the same images, (models, 1 +
    replicates).

    The first column is the estimate; in each of the others all models have the same patients drawn.
    So differences of rows are paired, and any number of pairs costs no more than the models
    themselves. With `LARGE` images or more a replicate's AUC is that of DeLong's components, which
    differs from it by far less than the replicates do.
    """
    models = [np.asarray(output, dtype=np.float64).reshape(len(truth), -1) for output in outputs]
    truth = truth.reshape(len(truth), -1)
    owner = (
        np.arange(len(truth))
        if patients is None
        else np.unique(np.asarray(patients), return_inverse=True)[1]
    )
    labels = np.zeros(len(truth)) if folds is None else np.asarray(folds)
    by_fold = [np.flatnonzero(labels == fold) for fold in np.unique(labels)]
    units = int(owner.max()) + 1
    draws = chain([np.ones((1, units))], _bootstrap_draws(units, replicates, rng))
    measure = measure or weighted_auc
    if measure in _PARTS_OF_MEASURE and min(map(len, by_fold)) >= LARGE:
        return _bootstrap_by_parts(measure, models, truth, owner, by_fold, draws)
    blocks = [
        [_macro_of_replicates(measure, m, truth, drawn[:, owner], by_fold) for m in models]
        for drawn in draws
    ]
    return np.concatenate([np.stack(block) for block in blocks], axis=1)


def interval(values: Floats, confidence: float = 0.95) -> Interval:
    """Of an estimate and its replicates, as `bootstrap` gives them."""
    defined = values[1:][~np.isnan(values[1:])]
    if not len(defined):
        return Interval(float(values[0]), math.nan, math.nan, 0)
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
    return Interval(float(values[0]), low, high, len(defined))


def _bootstrap_draws(units: int, replicates: int, rng: np.random.Generator) -> Iterator[Floats]:
    """How often each unit is drawn, one row per replicate, in blocks."""
    for start in range(0, replicates, _REPLICATES_AT_A_TIME):
        chosen = rng.integers(units, size=(min(_REPLICATES_AT_A_TIME, replicates - start), units))
        yield np.stack([np.bincount(row, minlength=units) for row in chosen]).astype(np.float64)


def _macro_of_replicates(
    measure: Measure, outputs: Floats, truth: Truth, weights: Floats, by_fold: Folds
) -> Floats:
    """Mean over folds and findings, for each row of weights; what is undefined or unknown (below
    zero) is left out.
    """
    chosen = [(rows[truth[rows, c] >= 0], c) for rows in by_fold for c in range(truth.shape[1])]
    nothing = np.full(len(weights), np.nan)
    stacked = np.stack(
        [
            measure(outputs[r, c], truth[r, c], weights[:, r]) if len(r) else nothing
            for r, c in chosen
        ]
    )
    defined = ~np.isnan(stacked)
    return _divided_or_nan(np.where(defined, stacked, 0.0).sum(axis=0), defined.sum(axis=0))


def _bootstrap_by_parts(
    measure: Measure,
    models: Sequence[Floats],
    truth: Truth,
    owner: Indices,
    by_fold: Folds,
    draws: Iterable[Floats],
) -> Floats:
    """The same from each image's part in a measure, summed by unit once: then a replicate is a
    product of matrices.
    """
    parts, joined = _PARTS_OF_MEASURE[measure]
    units, sums = int(owner.max()) + 1, []
    for rows, column in product(by_fold, range(truth.shape[1])):
        labels = truth[rows, column]
        of_models = [parts(model[rows, column], labels) for model in models]
        for place, kind in enumerate((1, 0)):
            own = owner[rows[labels == kind]]
            columns = [np.ones(len(own)), *(part[place] for part in of_models)]
            sums.append(np.stack([np.bincount(own, column, units) for column in columns], axis=1))
    together = max(1, _PRODUCT_COLUMNS // (1 + len(models)))
    sums = [np.concatenate(sums[i : i + together], axis=1) for i in range(0, len(sums), together)]
    found = []
    for drawn in draws:
        total = np.concatenate([drawn @ some for some in sums], axis=1).reshape(
            len(drawn), -1, 1 + len(models)
        )
        rates = _divided_or_nan(
            total[:, :, 1:], np.broadcast_to(total[:, :, :1], total[:, :, 1:].shape)
        )
        found.append(joined(rates[:, ::2], rates[:, 1::2]))
    values = np.concatenate(found)  # replicates, folds and findings, models
    defined = ~np.isnan(values)
    return _divided_or_nan(np.where(defined, values, 0.0).sum(axis=1), defined.sum(axis=1)).T


def _auc_bootstrap_parts(scores: Floats, truth: Truth) -> tuple[Floats, Floats]:
    """DeLong's components: for each positive image the share of negatives below it, for each
    negative that of positives above; less half the AUC each, so that the sum of their means is the
    AUC."""
    positives, negatives = scores[truth == 1], scores[truth == 0]
    if not len(positives) or not len(negatives) or np.isnan(scores).any():
        return np.full(len(positives), np.nan), np.full(len(negatives), np.nan)
    above, below = _share_below(negatives, positives), 1 - _share_below(positives, negatives)
    area = above.mean()
    return above - area / 2, below - area / 2


def _share_below(scores: Floats, limits: Floats) -> Floats:
    """Of the scores, the share below each limit; equal ones count half."""
    ordered, order = (
        np.sort(scores),
        np.argsort(limits),
    )  # limits in order are found several times faster
    ends = [np.searchsorted(ordered, limits[order], side) for side in ("left", "right")]
    share = np.empty(len(limits))
    share[order] = (ends[0] + ends[1]) / (2 * len(scores))
    return share


def _gm_bootstrap_parts(called: Floats, truth: Truth) -> tuple[Floats, Floats]:
    """Which positive and which negative images are called as they are."""
    right = np.where(np.isnan(called).any(), np.nan, called == truth)
    return right[truth == 1], right[truth == 0]


def weighted_auc(scores: Floats, truth: Truth, weights: Floats) -> Floats:
    """The AUC for each row of weights (replicates × images); ties count half.

    NaN without both kinds of image, or where a score is not a number.
    """
    if np.isnan(scores).any():
        return np.full(len(weights), np.nan)
    positive = truth == 1
    order = np.argsort(scores[~positive], kind="stable")
    negatives = scores[~positive][order]
    drawn, others = (
        weights.T[positive],
        weights.T[np.flatnonzero(~positive)[order]],
    )  # images × replicates
    below = np.concatenate([np.zeros((1, len(weights))), np.cumsum(others, axis=0)])
    ends = [np.searchsorted(negatives, scores[positive], side) for side in ("left", "right")]
    pairs = drawn.sum(axis=0) * below[-1]
    return _divided_or_nan(np.einsum("ij,ij->j", drawn, below[ends[0]] + below[ends[1]]) / 2, pairs)


def weighted_gm(called: Floats, truth: Truth, weights: Floats) -> Floats:
    """The geometric mean of sensitivity and specificity of calls (0 or 1) for each row of weights.

    Without a threshold there are no calls: NaN.
    """
    if np.isnan(called).any():
        return np.full(len(weights), np.nan)
    positive_images, right = truth == 1, called == truth
    kinds = [positive_images & right, positive_images, ~positive_images & right, ~positive_images]
    totals = weights @ np.stack(kinds, axis=1).astype(np.float64)
    return np.sqrt(
        _divided_or_nan(totals[:, 0], totals[:, 1]) * _divided_or_nan(totals[:, 2], totals[:, 3])
    )


def _divided_or_nan(totals: Floats, counts: NDArray[Any]) -> Floats:
    """NaN where there is nothing to divide by."""
    return np.asarray(
        np.divide(totals, counts, out=np.full(totals.shape, np.nan), where=counts > 0)
    )


_PARTS_OF_MEASURE: dict[
    Measure, tuple[Callable[..., tuple[Floats, Floats]], Callable[..., Floats]]
] = {
    weighted_auc: (_auc_bootstrap_parts, np.add),
    weighted_gm: (
        _gm_bootstrap_parts,
        lambda sensitivity, specificity: np.sqrt(sensitivity * specificity),
    ),
}

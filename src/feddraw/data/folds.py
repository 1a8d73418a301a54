"""Cross-validation by patient: every image is tested once, and no patient is on two sides of a
split.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import Dataset, Split
from feddraw.data.splits import Rows, split_patients_by_chance
from feddraw.errors import UserError

VALIDATION_SHARE = 0.1  # of all images


def refold(dataset: Dataset, folds: int, fold: int) -> Dataset:
    """All images split anew: this fold to test, a tenth of all to validate, the rest to train.

    The folds depend on the images' patients (or names, where patients are not known) only, not on a
    seed. Pixels are still normalised as the data set says.
    """
    # An image that cannot be used is in no split.
    used = np.sort(np.concatenate(list(dataset.rows.values())))
    groups, counts, order = split_patients_by_chance(dataset.labels, used, 0)
    if len(counts) < 2 * folds:
        raise UserError(f"{len(counts)} patients are too few for {folds} folds")
    test = _fold_of_each_image(groups, order, folds) == fold
    validation = _validation_fold(groups, order, ~test, int(VALIDATION_SHARE * len(groups)))
    masks: dict[Split, NDArray[np.bool_]] = {
        "train": ~test & ~validation,
        "validation": validation,
        "test": test,
    }
    return replace(dataset, rows={split: used[mask] for split, mask in masks.items()})


def _fold_of_each_image(groups: Rows, order: Rows, folds: int) -> Rows:
    """The fold of each image: large groups first, each to the fold with the fewest images."""
    counts = np.bincount(groups)
    fold_of = np.empty(len(counts), dtype=np.intp)
    filled = np.zeros(folds)
    for group in order[np.argsort(-counts[order], kind="stable")]:
        fold_of[group] = filled.argmin()
        filled[fold_of[group]] += counts[group]
    return fold_of[groups]


def _validation_fold(
    groups: Rows, order: Rows, allowed: NDArray[np.bool_], room: int
) -> NDArray[np.bool_]:
    """Whole groups in the order given, as long as they fit into the room."""
    counts = np.bincount(groups, allowed)
    chosen = np.zeros(len(counts), dtype=bool)
    for group in order:
        if 0 < counts[group] <= room:
            chosen[group] = True
            room -= counts[group]
    return np.asarray(chosen[groups] & allowed)

"""Splits by patient, none of whom is on two sides: of one's own data, and for cross-validation.

One's own data are split with each finding and site in proportion, and rare findings in every split.
Iterative stratification (Sechidis, Tsoumakas and Vlahavas, 2011) with patients in the place of
images: the rarest property is shared out first, because common ones can still be balanced
afterwards. Properties are the positives and the negatives of each finding, as far as they are
known, and the sites. A property that enough patients have reaches every split, also one whose share
of them would be less than a patient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import SPLITS, Dataset, Labels, Split
from feddraw.data.label_table import LabelTable
from feddraw.errors import UserError, below_one, is_list_of_numbers

Rows = NDArray[np.intp]
VALIDATION_SHARE = 0.1  # of all images, in cross-validation


@dataclass(frozen=True, eq=False)
class Patients:
    """The patients of some images, in an order that is drawn by a seed; where they are not known,
    each image counts as one.
    """

    of_image: Rows  # the number of each image's patient
    images: Rows  # of each patient
    drawn: Rows  # all patients in the order in which they are drawn

    @staticmethod
    def draw(labels: Labels, rows: Rows, seed: int) -> Patients:
        names = labels.names[rows] if labels.patients is None else labels.patients[rows]
        _, of_image, images = np.unique(names, return_inverse=True, return_counts=True)
        chances = np.random.PCG64(seed).random_raw(len(images))
        return Patients(of_image, images, np.argsort(chances, kind="stable"))

    @property
    def largest_first(self) -> Rows:
        """Those with many images first, each number of images in drawn order."""
        return np.asarray(self.drawn[np.argsort(-self.images[self.drawn], kind="stable")])


def draw_share_of_patients(labels: Labels, rows: Rows, share: float, seed: int) -> Rows:
    """Some of the rows, about this share of them, all of a patient or none; the same on every
    machine.
    """
    below_one("the share of images to carve out", share)
    if share == 0:
        return rows[:0]
    patients = Patients.draw(labels, rows, seed)
    wanted = max(1, round(share * len(rows)))
    images = np.cumsum(patients.images[patients.drawn])
    taken = patients.drawn[: np.searchsorted(images, wanted) + 1]
    return rows[np.isin(patients.of_image, taken)]


def stratified_split(
    labels: Labels, rows: Rows, shares: Sequence[float], seed: int
) -> NDArray[np.int8]:
    """The split of each of the rows, by its place among the shares; the same on every machine."""
    patients = Patients.draw(labels, rows, seed)
    has = _properties(labels, rows, patients)
    split = _split_patients(has, patients, np.asarray(shares, dtype=np.float64))
    return split[patients.of_image]


def _properties(labels: Labels, rows: Rows, patients: Patients) -> NDArray[np.bool_]:
    """What each patient has an image of: (patients, properties)."""
    values = labels.values[rows] > 0
    known = np.ones_like(values) if labels.known is None else labels.known[rows]
    columns = [values & known, ~values & known]
    if labels.sites is not None:
        sites = labels.sites[rows]
        columns.append(sites[:, None] == np.unique(sites)[None, :])
    image_has = np.concatenate(columns, axis=1)
    image, prop = np.nonzero(image_has)
    has = np.zeros((len(patients.images), image_has.shape[1]), dtype=bool)
    has[patients.of_image[image], prop] = True
    return has


def _split_patients(
    has: NDArray[np.bool_], patients: Patients, shares: NDArray[np.float64]
) -> NDArray[np.int8]:
    """The split of each patient."""
    images = patients.images
    order = patients.largest_first  # those with few images fill up
    split = np.full(len(images), -1, dtype=np.int8)
    wanted = _wanted_patients_per_split(has.sum(axis=0), shares)
    patients_left = wanted.copy()
    images_left = shares * images.sum()
    while (split < 0).any():
        left = has[split < 0].sum(axis=0)
        rarest = None
        if left.any():
            rarest = int(np.where(left > 0, left, len(images) + 1).argmin())
        for patient in order:
            if split[patient] >= 0 or (rarest is not None and not has[patient, rarest]):
                continue
            # the split that has least of what it should have, so that large patients are spread
            # over all
            if rarest is None:
                needs = images_left / shares
            else:
                needs = patients_left[:, rarest] / wanted[:, rarest]
            best = np.flatnonzero(needs == needs.max())
            chosen = int(best[images_left[best].argmax()])
            split[patient] = chosen
            patients_left[chosen, has[patient]] -= 1
            images_left[chosen] -= images[patient]
    return _reach_every_split(split, has, order, len(shares))


def _wanted_patients_per_split(
    counts: NDArray[np.intp], shares: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How many patients with each property each split should have: one at least, where there are
    enough.
    """
    wanted: NDArray[np.float64] = shares[:, None] * counts[None, :]
    enough = (counts >= len(shares))[None, :]
    small = enough & (wanted < 1)
    rest = np.where(small, 0, wanted)
    scale = np.divide(
        counts - small.sum(axis=0),
        rest.sum(axis=0),
        out=np.ones(len(counts)),
        where=rest.any(axis=0),
    )
    return np.where(small, 1.0, rest * scale)


def _reach_every_split(
    split: NDArray[np.int8], has: NDArray[np.bool_], order: Rows, splits: int
) -> NDArray[np.int8]:
    """Move single patients to splits that still lack a property, where no split loses its last one
    of another.
    """
    counts = np.stack([has[split == number].sum(axis=0) for number in range(splits)])
    for prop in np.argsort(has.sum(axis=0), kind="stable"):
        if has[:, prop].sum() < splits:
            continue
        for number in np.flatnonzero(counts[:, prop] == 0):
            for patient in order[::-1]:  # those with few images first
                before = split[patient]
                if has[patient, prop] and (counts[before, has[patient]] > 1).all():
                    split[patient] = number
                    counts[before, has[patient]] -= 1
                    counts[number, has[patient]] += 1
                    break
    return split


def split_own_rows(table: LabelTable, shares: Sequence[float], seed: int) -> NDArray[np.int8]:
    """Splits for rows that have none: all if no column says, validation out of training if only
    that lacks.
    """
    if not is_list_of_numbers(shares, 3) or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise UserError(f"data.shares must be three positive numbers that sum to 1, not {shares}")
    labels = table.labels
    split = table.split
    if (split < 0).any() or not len(split):
        return stratified_split(labels, np.arange(len(labels)), shares, seed)
    if not (split == 1).any():
        training = table.split_rows("train")
        split[training] = stratified_split(labels, training, [shares[0], shares[1]], seed)
    return split


def rows_by_split(name: str, split: NDArray[np.int8]) -> dict[Split, NDArray[np.intp]]:
    """The rows of each split, none of which may be empty."""
    rows = {part: np.flatnonzero(split == number) for number, part in enumerate(SPLITS)}
    if empty := [part for part in SPLITS if not len(rows[part])]:
        raise UserError(f"{name} has no usable image for {', '.join(empty)}")
    return rows


# ------------------------------------------------------------------------------- cross-validation


def refold(dataset: Dataset, folds: int, fold: int) -> Dataset:
    """All images split anew: this fold to test, a tenth of all to validate, the rest to train.

    The folds depend on the images' patients (or names, where patients are not known) only, not on a
    seed. Pixels are still normalised as the data set says.
    """
    # an image that cannot be used is in no split
    used = np.sort(np.concatenate(list(dataset.rows.values())))
    patients = Patients.draw(dataset.labels, used, seed=0)
    if len(patients.images) < 2 * folds:
        raise UserError(f"{len(patients.images)} patients are too few for {folds} folds")
    test = _fold_of_each_image(patients, folds) == fold
    validation = _validation_images(patients, ~test, int(VALIDATION_SHARE * len(used)))
    rows: dict[Split, Rows] = {
        "train": used[~test & ~validation],
        "validation": used[validation],
        "test": used[test],
    }
    return replace(dataset, rows=rows)


def _fold_of_each_image(patients: Patients, folds: int) -> Rows:
    """Patients with many images first, each to the fold with the fewest images."""
    fold_of_patient = np.empty(len(patients.images), dtype=np.intp)
    images_in_fold = np.zeros(folds)
    for patient in patients.largest_first:
        fold = int(images_in_fold.argmin())
        fold_of_patient[patient] = fold
        images_in_fold[fold] += patients.images[patient]
    return fold_of_patient[patients.of_image]


def _validation_images(
    patients: Patients, allowed: NDArray[np.bool_], most: int
) -> NDArray[np.bool_]:
    """Whole patients in drawn order, as long as there are not more images than wanted."""
    images = np.bincount(patients.of_image, allowed)
    chosen = np.zeros(len(images), dtype=bool)
    left = most
    for patient in patients.drawn:
        if 0 < images[patient] <= left:
            chosen[patient] = True
            left -= images[patient]
    return np.asarray(chosen[patients.of_image] & allowed)

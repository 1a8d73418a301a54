"""Splits of one's own data: whole patients, each finding and site in proportion, rare findings in
every split.

Iterative stratification (Sechidis, Tsoumakas and Vlahavas, 2011) with patients in the place of
images: the rarest property is shared out first, because common ones can still be balanced
afterwards. Properties are the positives and the negatives of each finding, as far as they are
known, and the sites. A property that enough patients have reaches every split, also one whose share
of them would be less than a patient.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import SPLITS, Labels, Split
from feddraw.data.label_table import LabelTable
from feddraw.errors import UserError, below_one, is_list_of_numbers

Rows = NDArray[np.intp]


def draw_share_of_patients(labels: Labels, rows: Rows, share: float, seed: int) -> Rows:
    """Some of the rows, about this share of them, all of a patient or none; the same on every
    machine.
    """
    below_one("the share of images to carve out", share)
    owner, sizes, order = split_patients_by_chance(labels, rows, seed)
    wanted = max(1, round(share * len(rows)))
    taken = (
        order[: np.searchsorted(np.cumsum(sizes[order]), wanted) + 1] if share > 0 else order[:0]
    )
    return rows[np.isin(owner, taken)]


def split_patients_by_chance(labels: Labels, rows: Rows, seed: int) -> tuple[Rows, Rows, Rows]:
    """The number of each row's patient (or of the row itself), the images of each, and all patients
    in drawn order.
    """
    owners = labels.names[rows] if labels.patients is None else labels.patients[rows]
    _, owner, images = np.unique(owners, return_inverse=True, return_counts=True)
    return owner, images, np.argsort(np.random.PCG64(seed).random_raw(len(images)), kind="stable")


def stratified_split(
    labels: Labels, rows: Rows, shares: Sequence[float], seed: int
) -> NDArray[np.int8]:
    """The split of each of the rows, by its place among the shares; the same on every machine."""
    owner, images, drawn = split_patients_by_chance(labels, rows, seed)
    # Patients with many images first: the others fill up.
    order = drawn[np.argsort(-images[drawn], kind="stable")]
    has = _patient_properties(labels, rows, owner, len(images))
    return _split_patients(has, images, order, np.asarray(shares, dtype=np.float64))[owner]


def _patient_properties(
    labels: Labels, rows: Rows, owner: Rows, patients: int
) -> NDArray[np.bool_]:
    """What each patient has an image of: (patients, properties)."""
    values = labels.values[rows] > 0
    known = np.ones_like(values) if labels.known is None else labels.known[rows]
    columns = [values & known, ~values & known]
    if labels.sites is not None:
        sites = labels.sites[rows]
        columns.append(sites[:, None] == np.unique(sites)[None, :])
    found = np.zeros((patients, sum(column.shape[1] for column in columns)), dtype=bool)
    image, place = np.nonzero(np.concatenate(columns, axis=1))
    found[owner[image], place] = True
    return found


def _split_patients(
    has: NDArray[np.bool_], images: Rows, order: Rows, shares: NDArray[np.float64]
) -> NDArray[np.int8]:
    split = np.full(len(images), -1, dtype=np.int8)
    wanted = _wanted_patients_per_split(has.sum(axis=0), shares)
    patients_left = wanted.copy()
    images_left = shares * images.sum()
    while (split < 0).any():
        left = has[split < 0].sum(axis=0)
        rarest = int(np.where(left > 0, left, len(images) + 1).argmin()) if left.any() else -1
        for patient in order:
            if split[patient] < 0 and (rarest < 0 or has[patient, rarest]):
                # the split that has least of what it should have, so that large patients are spread
                # over all
                needs = (
                    images_left / shares
                    if rarest < 0
                    else patients_left[:, rarest] / wanted[:, rarest]
                )
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
    for place in np.argsort(has.sum(axis=0), kind="stable"):
        if has[:, place].sum() < splits:
            continue
        for number in np.flatnonzero(counts[:, place] == 0):
            for patient in order[::-1]:  # those with few images first
                before = split[patient]
                if has[patient, place] and (counts[before, has[patient]] > 1).all():
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
        raise UserError(f"shares must be three positive numbers that sum to 1, not {shares}")
    labels = table.labels
    given = table.split
    if (given < 0).any() or not len(given):
        return stratified_split(labels, np.arange(len(labels)), shares, seed)
    if not (given == 1).any():
        training = table.split_rows("train")
        given[training] = stratified_split(labels, training, [shares[0], shares[1]], seed)
    return given


def rows_by_split(name: str, split: NDArray[np.int8]) -> dict[Split, NDArray[np.intp]]:
    """The rows of each split, none of which may be empty."""
    rows = {one: np.flatnonzero(split == number) for number, one in enumerate(SPLITS)}
    if empty := [one for one in SPLITS if not len(rows[one])]:
        raise UserError(f"{name} has no usable image for {', '.join(empty)}")
    return rows

"""Splits of one's own data: whole patients, each finding and site in proportion, rare findings in every split.

Iterative stratification (Sechidis, Tsoumakas and Vlahavas, 2011) with patients in the place of images: the rarest
property is shared out first, because common ones can still be balanced afterwards. Properties are the positives and the
negatives of each finding, as far as they are known, and the sites. A property that enough patients have reaches every
split, also one whose share of them would be less than a patient. Below that: how many images of each finding a split
has, and whether they are enough for an AUC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import SPLITS, Dataset, Labels
from feddraw.errors import below_one

Rows = NDArray[np.intp]


def draw_share_of_patients(labels: Labels, rows: Rows, share: float, seed: int) -> Rows:
    """Some of the rows, about this share of them, all of a patient or none; the same on every machine."""
    below_one("the share of images to carve out", share)
    owner, sizes, order = split_patients_by_chance(labels, rows, seed)
    wanted = max(1, round(share * len(rows)))
    taken = order[: np.searchsorted(np.cumsum(sizes[order]), wanted) + 1] if share > 0 else order[:0]
    return rows[np.isin(owner, taken)]


def split_patients_by_chance(labels: Labels, rows: Rows, seed: int) -> tuple[Rows, Rows, Rows]:
    """The number of each row's patient (or of the row itself), the images of each, and all patients in drawn order."""
    owners = labels.names[rows] if labels.patients is None else labels.patients[rows]
    _, owner, images = np.unique(owners, return_inverse=True, return_counts=True)
    return owner, images, np.argsort(np.random.PCG64(seed).random_raw(len(images)), kind="stable")


def stratified_split(labels: Labels, rows: Rows, shares: Sequence[float], seed: int) -> NDArray[np.int8]:
    """The split of each of the rows, by its place among the shares; the same on every machine."""
    owner, images, drawn = split_patients_by_chance(labels, rows, seed)
    order = drawn[np.argsort(-images[drawn], kind="stable")]  # patients with many images first: the others fill up
    has = _patient_properties(labels, rows, owner, len(images))
    return _split_patients(has, images, order, np.asarray(shares, dtype=np.float64))[owner]


def _patient_properties(labels: Labels, rows: Rows, owner: Rows, patients: int) -> NDArray[np.bool_]:
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


def _split_patients(has: NDArray[np.bool_], images: Rows, order: Rows, shares: NDArray[np.float64]) -> NDArray[np.int8]:
    split = np.full(len(images), -1, dtype=np.int8)
    wanted = _wanted_patients_per_split(has.sum(axis=0), shares)
    patients_left, images_left = wanted.copy(), shares * images.sum()
    while (split < 0).any():
        left = has[split < 0].sum(axis=0)
        rarest = int(np.where(left > 0, left, len(images) + 1).argmin()) if left.any() else -1
        for patient in order:
            if split[patient] < 0 and (rarest < 0 or has[patient, rarest]):
                # the split that has least of what it should have, so that large patients are spread over all
                needs = images_left / shares if rarest < 0 else patients_left[:, rarest] / wanted[:, rarest]
                best = np.flatnonzero(needs == needs.max())
                chosen = int(best[images_left[best].argmax()])
                split[patient] = chosen
                patients_left[chosen, has[patient]] -= 1
                images_left[chosen] -= images[patient]
    return _reach_every_split(split, has, order, len(shares))


def _wanted_patients_per_split(counts: NDArray[np.intp], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many patients with each property each split should have: one at least, where there are enough."""
    wanted: NDArray[np.float64] = shares[:, None] * counts[None, :]
    enough = (counts >= len(shares))[None, :]
    small = enough & (wanted < 1)
    rest = np.where(small, 0, wanted)
    scale = np.divide(counts - small.sum(axis=0), rest.sum(axis=0), out=np.ones(len(counts)), where=rest.any(axis=0))
    return np.where(small, 1.0, rest * scale)


def _reach_every_split(split: NDArray[np.int8], has: NDArray[np.bool_], order: Rows, splits: int) -> NDArray[np.int8]:
    """Move single patients to splits that still lack a property, where no split loses its last one of another."""
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


FEW_FOR_AUC = 10  # positive or negative test images below which an AUC says little: one image moves it by 0.1 or more


def findings_per_split(dataset: Dataset) -> dict[str, dict[str, Any]]:
    """What each split holds: images, patients and sites where they are known, and each finding's images by label."""
    found: dict[str, dict[str, Any]] = {}
    for split in SPLITS:
        rows = dataset.rows[split]
        labels = dataset.labels.take(rows)
        positives, known = labels.values.sum(axis=0, dtype=np.int64), dataset.labels.known_counts(rows)
        found[split] = {"images": len(rows), "positives": positives.tolist(), "negatives": (known - positives).tolist()}
        if labels.patients is not None:
            found[split]["patients"] = len(np.unique(labels.patients))
        if labels.sites is not None:
            sites, images = np.unique(labels.sites, return_counts=True)
            found[split]["sites"] = dict(zip(sites.tolist(), images.tolist(), strict=True))
    return found


def too_few_for_auc(split: Mapping[str, Any], place: int) -> bool:
    """Whether the AUC of a finding on these images says little."""
    return rarer_label_in_split(split, place) < FEW_FOR_AUC


def rarer_label_in_split(split: Mapping[str, Any], place: int) -> int:
    """Images of the rarer label of a finding."""
    return min(int(split["positives"][place]), int(split["negatives"][place]))


def split_counts_in_words(split: Mapping[str, Any], place: int) -> str:
    """Positive / negative images of a finding, and those whose label is not known."""
    positives, negatives = split["positives"][place], split["negatives"][place]
    unknown = split["images"] - positives - negatives
    return f"{positives:,} / {negatives:,}" + (f", {unknown:,} unknown" if unknown else "")

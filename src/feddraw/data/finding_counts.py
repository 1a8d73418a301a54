"""How many images of each split show each finding, and whether these are enough for an AUC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from feddraw.data.dataset import SPLITS, Dataset

# positive or negative test images below which an AUC says little: one image moves it by 0.1 or more
FEW_FOR_AUC = 10


def findings_per_split(dataset: Dataset) -> dict[str, dict[str, Any]]:
    """What each split holds: images, patients and sites where they are known, and each finding's
    images by label.
    """
    splits: dict[str, dict[str, Any]] = {}
    for split in SPLITS:
        rows = dataset.rows[split]
        labels = dataset.labels.take(rows)
        positives = labels.values.sum(axis=0, dtype=np.int64)
        known = dataset.labels.known_counts(rows)
        splits[split] = {
            "images": len(rows),
            "positives": positives.tolist(),
            "negatives": (known - positives).tolist(),
        }
        if labels.patients is not None:
            splits[split]["patients"] = len(np.unique(labels.patients))
        if labels.sites is not None:
            sites, images = np.unique(labels.sites, return_counts=True)
            splits[split]["sites"] = dict(zip(sites.tolist(), images.tolist(), strict=True))
    return splits


def too_few_for_auc(split: Mapping[str, Any], place: int) -> bool:
    """Whether the AUC of a finding on these images says little."""
    return rarer_label_in_split(split, place) < FEW_FOR_AUC


def rarer_label_in_split(split: Mapping[str, Any], place: int) -> int:
    """Images of the rarer label of a finding."""
    return min(int(split["positives"][place]), int(split["negatives"][place]))


def split_counts_in_words(split: Mapping[str, Any], place: int) -> str:
    """Positive / negative images of a finding, and those whose label is not known."""
    positives = split["positives"][place]
    negatives = split["negatives"][place]
    unknown = split["images"] - positives - negatives
    return f"{positives:,} / {negatives:,}" + (f", {unknown:,} unknown" if unknown else "")


def few_in_words() -> str:
    few = FEW_FOR_AUC
    return (
        f"fewer than {few} positive or {few} negative test images: one image moves its AUC by"
        f" {1 / few:g} or more"
    )

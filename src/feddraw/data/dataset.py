"""What a data set is: images, labels, and which of them are for training, validation and test."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from feddraw.data.subgroups import Subgrouping
from feddraw.errors import UserError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

# tasks, which the columns of labels belong to: each is there or not, or exactly one is
FINDINGS_TASK = "findings"
CLASSES_TASK = "classes"

SITE = "site"  # what the grouping by site is called
UNKNOWN = -1  # what `Labels.truth` holds where a label is not known


@dataclass(frozen=True, eq=False)
class Labels:
    """What is known of each image without looking at it: enough to split images among clients."""

    values: NDArray[np.uint8]  # (n, findings), 1 = finding present
    findings: tuple[str, ...]
    names: NDArray[np.str_]  # (n,), unique and stable: partitions are drawn in the order of names
    patients: NDArray[np.str_] | None = None  # (n,)
    sites: NDArray[np.str_] | None = None  # (n,)
    # (n,), how many of the findings were marked uncertain
    uncertain: NDArray[np.uint8] | None = None
    # (n,), such as the patient's sex, for rules that compare groups
    groups: NDArray[np.str_] | None = None
    # (n, findings), which labels are known (the others hold 0); None = all
    known: NDArray[np.bool_] | None = None
    # what the columns are, unless the settings say otherwise: a file of `tasks/`
    task: str = FINDINGS_TASK
    subgroups: tuple[Subgrouping, ...] = ()  # that results are also given for

    def __post_init__(self) -> None:
        if twice := [name for name, count in Counter(self.findings).items() if count > 1]:
            raise UserError(
                f"two findings or classes are called {twice[0]}: each needs a name of its own"
            )
        if self.known is None:
            return
        if self.known.shape != self.values.shape or self.known.dtype != np.bool_:
            raise ValueError(
                f"known must be a bool array of shape {self.values.shape}, one entry per label"
            )
        if self.known.all():
            # one way to say it, so that a complete table gives the same bits however it was read
            object.__setattr__(self, "known", None)
            return
        contradictions = ~self.known & (self.values != 0)
        if contradictions.any():
            raise ValueError(
                f"{int(contradictions.sum())} labels are marked unknown and hold a value other than"
                " 0"
            )

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[np.intp]) -> Labels:
        """The same for some of the images."""
        arrays: dict[str, Any] = {
            name: array[rows] for name, array in vars(self).items() if isinstance(array, np.ndarray)
        }
        return replace(
            self, **arrays, subgroups=tuple(column.take(rows) for column in self.subgroups)
        )

    def groupings(self) -> tuple[Subgrouping, ...]:
        """All that results are also given for: sites, where they are known, and subgroups."""
        if self.sites is None:
            return self.subgroups
        return (Subgrouping.of_text(SITE, self.sites), *self.subgroups)

    def truth(self, rows: NDArray[np.intp]) -> NDArray[np.integer[Any]]:
        """Labels of some of the images as metrics read them: 1, 0, and UNKNOWN (−1) where a label
        is not known.
        """
        values = self.values[rows]
        if self.known is None or self.known[rows].all():
            return values
        return np.where(self.known[rows], values, UNKNOWN).astype(np.int8)

    def patient_numbers(self) -> NDArray[np.int64] | None:
        """Each image's patient as a number."""
        if self.patients is None:
            return None
        _, numbers = np.unique(self.patients, return_inverse=True)
        return np.asarray(numbers.astype(np.int64))

    def two_groups(self) -> NDArray[np.int8] | None:
        """Each image's group as 0 or 1, the two most common in the order of their names; -1 for
        others.
        """
        if self.groups is None:
            return None
        counts = Counter(group for group in self.groups.tolist() if group)
        two = sorted(group for group, _ in counts.most_common(2))
        numbers = [two.index(group) if group in two else -1 for group in self.groups.tolist()]
        return np.array(numbers, np.int8)

    def targets(self) -> NDArray[np.float32]:
        """Labels as training reads them: 1, 0, and NaN where a label is not known."""
        values = self.values.astype(np.float32)
        if self.known is not None:
            values[~self.known] = np.nan
        return values

    def known_counts(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """(findings,): how many of the images have a known label of each finding."""
        if self.known is None:
            return np.full(len(self.findings), len(rows), dtype=np.intp)
        return np.asarray(self.known[rows].sum(axis=0), dtype=np.intp)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images with labels, and which are for training, validation and test."""

    name: str
    # (n, height, width) bytes, or (n, height, width, 3) in colour, memory-mapped where they come
    # from a file; or floating features of them, in any shape, where clients train behind a frozen
    # part of the network
    images: NDArray[Any]
    labels: Labels
    # which images are for training, validation, test
    rows: dict[Split, NDArray[np.intp]] = field(repr=False)
    mean: float = 0.5  # of pixel / 255, subtracted before training
    std: float = 0.25
    synthetic: bool = False
    modalities: tuple[str, ...] = ()  # that DICOM files among them name, such as DX

    @property
    def findings(self) -> tuple[str, ...]:
        return self.labels.findings

    @property
    def size(self) -> int:
        """Height and width in pixels."""
        return int(self.images.shape[1])

    @property
    def channels(self) -> int:
        """Of images: 1 if they are grey, 3 in colour."""
        return int(self.images.shape[3]) if self.images.ndim == 4 else 1

    def training_labels(self) -> Labels:
        """Labels of the training split, the only one that is split among clients."""
        return self.labels.take(self.rows["train"])

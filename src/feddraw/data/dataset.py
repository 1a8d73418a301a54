"""What a data set is: images, labels, and which of them are for training, validation and test."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# The paper's five findings, in its order (Table 1).
FINDINGS = ("Atelectasis", "Edema", "Pleural Effusion", "Cardiomegaly", "Consolidation")

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Labels:
    """What is known of each image without looking at it: enough to deal images to clients."""

    values: NDArray[np.uint8]  # (n, classes), 1 = finding present
    classes: tuple[str, ...]
    names: NDArray[np.str_]  # (n,), unique and stable: partitions are drawn in the order of names
    patients: NDArray[np.str_] | None = None  # (n,)
    sites: NDArray[np.str_] | None = None  # (n,)
    uncertain: NDArray[np.uint8] | None = None  # (n,), how many of the classes were marked uncertain
    groups: NDArray[np.str_] | None = None  # (n,), such as the patient's sex, for rules that compare groups

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[np.intp]) -> Labels:
        """The same for some of the images."""
        several = {name: getattr(self, name) for name in ("patients", "sites", "uncertain", "groups")}
        chosen: dict[str, Any] = {name: None if column is None else column[rows] for name, column in several.items()}
        return replace(self, values=self.values[rows], names=self.names[rows], **chosen)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Grey images with labels, split into training, validation and test part."""

    name: str
    images: NDArray[np.uint8]  # (n, height, width), memory-mapped where they come from a file
    labels: Labels
    rows: dict[Part, NDArray[np.intp]] = field(repr=False)  # which images are for training, validation, test
    mean: float = 0.5  # of pixel / 255, subtracted before training
    std: float = 0.25
    synthetic: bool = False

    @property
    def classes(self) -> tuple[str, ...]:
        return self.labels.classes

    @property
    def size(self) -> int:
        """Height and width in pixels."""
        return int(self.images.shape[1])

    def training_labels(self) -> Labels:
        """Labels of the training part, the only one that is dealt to clients."""
        return self.labels.take(self.rows["train"])

"""The scores of single images that a run keeps in `predictions.safetensors`, read back: of a split,
and of holdouts.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from feddraw.data.subgroups import NOT_STATED, Subgrouping
from feddraw.results.run_folder import RunFolder

Floats = NDArray[np.float64]
MAX_PREDICTIONS = 2**30  # bytes of a file of predictions, which is read whole


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a run's model said about the test images."""

    # (images, classes), or (clients, images, classes) where every client has a model of its own
    scores: Floats
    truth: NDArray[np.integer[Any]]  # 1, 0, and -1 where a label is not known
    patients: NDArray[np.int64] | None
    classes: tuple[str, ...]
    tested: str  # a hash of what was tested: equal for the same images
    groupings: tuple[Subgrouping, ...] = ()  # by site and by subgroup

    @property
    def shapes_fit(self) -> bool:
        """Whether the arrays belong together."""
        images, classes = self.truth.shape if self.truth.ndim == 2 else (0, 0)
        owned = self.patients is None or (
            self.patients.shape == (images,) and self.patients.dtype.kind in "iu"
        )
        scored = (
            self.scores.ndim in (2, 3)
            and self.scores.shape[-2:] == (images, classes)
            and len(self.scores) > 0
        )
        return (
            scored
            and owned
            and all(_group_fits(grouping, images) for grouping in self.groupings)
            and classes == len(self.classes)
            and set(np.unique(self.truth)) <= {-1, 0, 1}
        )

    @property
    def by_model(self) -> Floats:
        """(models, images, classes)"""
        return self.scores if self.scores.ndim == 3 else self.scores[None]


@dataclass(frozen=True, eq=False)
class HoldoutPredictions:
    """What the model that each client would use said about the images that the client kept back."""

    scores: Floats  # (images, findings)
    truth: NDArray[np.integer[Any]]  # 1, 0, and -1 where a label is not known
    clients: NDArray[np.int64]  # (images,), the number of each image's client
    rows: NDArray[np.int64]  # (images,), where each image is in the data set
    patients: NDArray[np.int64] | None

    @property
    def shapes_fit(self) -> bool:
        """Whether the arrays belong together."""
        images = len(self.rows)
        columns = [self.clients, self.rows, *([] if self.patients is None else [self.patients])]
        flat = all(column.shape == (images,) and column.dtype.kind in "iu" for column in columns)
        return (
            flat
            and self.truth.ndim == 2
            and self.truth.shape == self.scores.shape
            and len(self.truth) == images
        )


def _group_fits(grouping: Subgrouping, images: int) -> bool:
    """Whether every image is in one of the subgroups, or in none."""
    places = grouping.of_image
    if places.shape != (images,) or places.dtype.kind not in "iu":
        return False
    return not images or NOT_STATED <= places.min() <= places.max() < len(grouping.values)


# A file of scores that is missing, or not as a run writes it, is as good as none.
_unless_damaged = suppress(
    SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError
)


def read_predictions(run: Path, split: str, model: str) -> Predictions | None:
    """The scores of every image of a split by one of a run's models, where the run kept them."""
    prefix = "" if model == "last" else f"{model}."
    with _unless_damaged:
        metadata, arrays = _read_scores(run, split)
        notes = json.loads(metadata["feddraw"])
        predictions = Predictions(
            scores=arrays[f"{prefix}{split}.scores"].astype(np.float64),
            truth=arrays[f"{split}.truth"],
            patients=arrays.get(f"{split}.patients"),
            classes=tuple(map(str, notes["classes"])),
            tested=str(notes["test"]),
            groupings=tuple(
                Subgrouping(
                    name=str(group["name"]),
                    values=tuple(map(str, group["values"])),
                    of_image=arrays[f"{split}.group.{number}"],
                )
                for number, group in enumerate(notes.get("groups", ()))
            ),
        )
        return predictions if predictions.shapes_fit else None
    return None


def read_holdout_predictions(run: Path) -> HoldoutPredictions | None:
    """The scores of the images that clients kept back, where the run has such."""
    with _unless_damaged:
        _, arrays = _read_scores(run, "holdout")
        predictions = HoldoutPredictions(
            scores=arrays["holdout.scores"].astype(np.float64),
            truth=arrays["holdout.truth"],
            clients=arrays["holdout.client"],
            rows=arrays["holdout.rows"],
            patients=arrays.get("holdout.patients"),
        )
        return predictions if predictions.shapes_fit else None
    return None


def _read_scores(run: Path, split: str) -> tuple[Any, dict[str, NDArray[Any]]]:
    """What a run's file of predictions says about itself, and its arrays of one split."""
    path = RunFolder(run).predictions
    if not path.is_file() or path.stat().st_size > MAX_PREDICTIONS:
        raise ValueError("no file of predictions")
    with safe_open(path, "np") as file:
        names = [name for name in file.keys() if f"{split}." in name]  # noqa: SIM118
        return file.metadata(), {name: file.get_tensor(name) for name in names}

"""What is done to the images of any data set: size, CLAHE, normalisation, and an estimate of what
that takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddraw.data.imaging import FITS, Recipe
from feddraw.errors import UserError, is_list_of_numbers, not_negative, one_of
from feddraw.system.progress import Progress
from feddraw.system.workers import limited_workers

# the paper's, of pixel / 255
PAPER_MEAN = 0.5146
PAPER_STD = 0.2548


@dataclass
class PreparationEstimate:
    """What preparing data sets would take: filled in while they are opened and nothing is
    written.
    """

    # By entry of the cache that is not there yet.
    bytes: dict[Path, int] = field(default_factory=dict)
    images: int = 0  # that have to be decoded or resized
    seconds: float = 0.0  # for that, in one process


@dataclass(frozen=True)
class ImagePreparation:
    """What is done to the images of any data set."""

    size: int = 224
    clahe: bool = False
    channels: int = 1  # 3: red, green and blue
    fit: str = "squash"  # what becomes of images that are not square: see `FITS`
    # The values that become black and white in files of more than 8 bits; empty: each file's own.
    levels: Sequence[float] = ()
    # "paper", "measured", or mean and standard deviation.
    normalize: str | Sequence[float] = "paper"
    skip_bad: bool = False
    workers: int = 0  # processes that prepare images; 0: one per core
    progress: Progress | None = None
    # Given: check everything, decode a few images, prepare nothing.
    estimate: PreparationEstimate | None = None

    def __post_init__(self) -> None:
        if not 8 <= self.size <= 2048:
            raise UserError(f"data.size must be from 8 to 2048 pixels, not {self.size}")
        if self.channels not in (1, 3):
            raise UserError(f"data.channels must be 1 (grey) or 3 (colour), not {self.channels}")
        one_of("data.fit", self.fit, tuple(FITS))
        self._check_levels()
        not_negative("workers", self.workers)

    def _check_levels(self) -> None:
        if isinstance(self.levels, list | tuple) and not len(self.levels):
            return
        if not is_list_of_numbers(self.levels, 2) or not self.levels[0] < self.levels[1]:
            raise UserError(
                "data.levels must be the values that become black and white, such as [0, 4095], or"
                f" [] for each file's own, not {self.levels!r}"
            )

    @property
    def recipe(self) -> Recipe:
        return Recipe(
            self.size,
            self.clahe,
            channels=self.channels,
            fit=self.fit,
            levels=tuple(float(value) for value in self.levels),
        )

    @property
    def processes(self) -> int:
        return limited_workers(self.workers)


def normalization(
    how: str | Sequence[float], images: NDArray[np.uint8], rows: NDArray[np.intp]
) -> tuple[float, float]:
    """Mean and standard deviation of pixel / 255: the paper's, given, or measured on the training
    images.
    """
    if how == "paper":
        return PAPER_MEAN, PAPER_STD
    if how == "measured":
        return measured_normalization(images, rows)
    if not is_list_of_numbers(how, 2) or float(how[1]) <= 0:
        raise UserError(
            "normalize must be paper, measured, or a mean and a positive standard deviation, not"
            f" {how!r}"
        )
    return float(how[0]), float(how[1])


def measured_normalization(
    images: NDArray[np.uint8], rows: NDArray[np.intp]
) -> tuple[float, float]:
    """From a count of each grey level, which is exact however many images there are."""
    counts = np.zeros(256, dtype=np.int64)
    for start in range(0, len(rows), 256):
        counts += np.bincount(images[rows[start : start + 256]].ravel(), minlength=256)
    levels = np.arange(256) / 255
    mean = float(np.average(levels, weights=counts))
    return mean, float(np.sqrt(np.average((levels - mean) ** 2, weights=counts))) or 1.0

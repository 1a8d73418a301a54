"""MedMNIST's sets of 2D images (Yang et al., 2023) that have one class per image, from files that
the user has.

They differ in names only, so they are one function and `medmnist.toml`, a table of their names.
ChestMNIST, with several findings per image, is a file of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from feddraw.data.dataset import Dataset
from feddraw.data.datasets.npz import npz_dataset
from feddraw.data.image_settings import ImagePreparation
from feddraw.data.npz_archive import NpzArchive
from feddraw.errors import UserError
from feddraw.system.file_reading import expanded_path

MEDMNIST_SOURCE = "https://zenodo.org/records/10519652"
MEDMNIST_SIDES = (28, 64, 128, 224)  # pixels of the published files


def medmnist(
    name: str, title: str, channels: int, classes: Sequence[str]
) -> Callable[..., Dataset]:
    """The data set of this name, as a function like those that other files have."""

    def member(
        how: ImagePreparation,
        *,
        path: str = "",
        channels: int = channels,
        normalize: str | Sequence[float] = "measured",
    ) -> Dataset:
        archive = NpzArchive.open(find_medmnist(name, path, how.size))
        return npz_dataset(archive, name, archive.class_table(classes), how)

    member.__name__ = name
    member.__doc__ = title
    return member


def find_medmnist(name: str, path: str, size: int) -> Path:
    """The file that the path names, or of a folder the one with the smallest images that are not
    below the wanted size, or else the largest.
    """
    place = expanded_path(path or os.environ.get("FEDDRAW_DATA", "."))
    if place.is_file():
        return place
    files = {side: place / medmnist_file(name, side) for side in MEDMNIST_SIDES}
    there = [side for side in MEDMNIST_SIDES if files[side].is_file()]
    if not there:
        raise UserError(
            f"no {medmnist_file(name, 28)} in {place}: get it from {MEDMNIST_SOURCE} and give the"
            " file or its folder (data.path)"
        )
    return files[min((side for side in there if side >= size), default=there[-1])]


def medmnist_file(name: str, side: int) -> str:
    """What MedMNIST calls the file of a set."""
    return f"{name}.npz" if side == 28 else f"{name}_{side}.npz"

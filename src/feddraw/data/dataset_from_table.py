"""From a table of images to a `Dataset`: leave out what cannot be used, prepare the rest once, measure if asked to."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddraw.catalog import installed
from feddraw.data.dataset import SPLITS, Dataset, Split
from feddraw.data.image_cache import Files, Prepared, Progress, Source, entry_for, open_finished, prepare
from feddraw.data.imaging import BadImage, Recipe
from feddraw.data.tables import Problem, Table, describe_problems, numbers
from feddraw.errors import UserError, not_negative
from feddraw.system.csv_cells import csv_text
from feddraw.system.file_writing import write_whole
from feddraw.system.workers import limited_workers

MEAN, STD = 0.5146, 0.2548  # the paper's, of pixel / 255

TRIED = 24  # images that are decoded when a data set is only looked at

log = logging.getLogger(__name__)


@dataclass
class Look:
    """What preparing data sets would take: filled in while they are opened and nothing is written."""

    bytes: dict[Path, int] = field(default_factory=dict)  # by entry of the cache that is not there yet
    images: int = 0  # that have to be decoded or resized
    seconds: float = 0.0  # for that, in one process


@dataclass(frozen=True)
class Preparation:
    """What is done to the images of any data set."""

    size: int = 224
    clahe: bool = False
    normalize: str | Sequence[float] = "paper"  # "paper", "measured", or mean and standard deviation
    skip_bad: bool = False
    workers: int = 0  # processes that prepare images; 0: one per core
    progress: Progress | None = None
    look: Look | None = None  # given: open and check everything, decode a few images, prepare nothing

    def __post_init__(self) -> None:
        if not 8 <= self.size <= 2048:
            raise UserError(f"size must be from 8 to 2048 pixels, not {self.size}")
        not_negative("workers", self.workers)

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.size, self.clahe)

    @property
    def processes(self) -> int:
        return limited_workers(self.workers)


def from_files(name: str, root: Path, table: Table, how: Preparation) -> Dataset:
    """The data set of image files under a folder."""
    total = len(table.labels) + len(table.problems)
    stamps = [stamp(root / path) for path in table.paths]
    there = np.array([row for row, found in enumerate(stamps) if found is not None], dtype=np.intp)
    lost = [absent(root, path) for path, found in zip(table.paths, stamps, strict=True) if found is None]
    table = table.take(there, lost)
    refuse(name, table.problems, total, how)
    rows_by_split(name, table.split)
    files = Files(root, table.paths, tuple(found for found in stamps if found is not None))
    if any(path.lower().endswith((".dcm", ".dicom")) for path in files.paths):
        check_pydicom()
    return prepared_dataset(name, table, files, how, how.processes, how.progress)


def prepared_dataset(
    name: str, table: Table, source: Source, how: Preparation, workers: int, progress: Progress | None
) -> Dataset:
    """The data set of images that are prepared now, or were before; where they are only looked at, of grey squares."""
    if how.look is None:
        return assemble(name, table, prepare(source, how.recipe, name, workers, progress), how)
    entry, shape = entry_for(name, source.identity(), asdict(how.recipe)), (len(source), how.size, how.size)
    if (found := open_finished(entry, shape)) is not None:
        return assemble(name, table, found, how)
    return unprepared(name, table, source, shape, entry, how)


def unprepared(
    name: str, table: Table, source: Source, shape: tuple[int, int, int], entry: Path, how: Preparation
) -> Dataset:
    """The data set with grey squares for images; a few of the images are tried, and what the rest costs is noted."""
    assert how.look is not None
    rows = np.unique(np.linspace(0, len(source) - 1, TRIED).astype(int))
    began, unread = time.perf_counter(), []
    for row in rows:
        try:
            how.recipe.apply(source.read(row))
        except BadImage as error:
            unread.append(Problem("that cannot be read", str(table.labels.names[row]), str(error)))
    refuse(name, unread, len(rows), how)
    how.look.bytes[entry] = int(np.prod(shape))
    how.look.images += len(source)
    how.look.seconds += (time.perf_counter() - began) / len(rows) * len(source)
    grey = np.broadcast_to(np.uint8(128), shape)
    return Dataset(name, grey, table.labels, rows_by_split(name, table.split), MEAN, STD)


def assemble(name: str, table: Table, prepared: Prepared, how: Preparation) -> Dataset:
    """The data set of prepared images, without those that turned out bad."""
    unread = [Problem("that cannot be read", str(table.labels.names[row]), why) for row, why in prepared.bad.items()]
    refuse(name, unread, len(table.labels), how)
    if problems := (*table.problems, *unread):
        write_skipped(name, problems, prepared.entry / "skipped.csv")
    split = table.split.copy()
    split[list(prepared.bad)] = -1  # their black squares stay in the array, in no split
    rows = rows_by_split(name, split)
    mean, std = normalization(how.normalize, prepared.images, rows["train"])
    return Dataset(name, prepared.images, table.labels, rows, mean, std)


def rows_by_split(name: str, split: NDArray[np.int8]) -> dict[Split, NDArray[np.intp]]:
    """The rows of each split, none of which may be empty."""
    rows = {one: np.flatnonzero(split == number) for number, one in enumerate(SPLITS)}
    if empty := [one for one in SPLITS if not len(rows[one])]:
        raise UserError(f"{name} has no usable image for {', '.join(empty)}")
    return rows


def stamp(path: Path) -> tuple[int, int] | None:
    """A file's size and time of change; nothing if it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116 - half the time of Path.stat on the 200,000 files of an archive
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def absent(root: Path, path: str) -> Problem:
    """A row without a file: what was tried, and a file of nearly the same name if there is one."""
    wanted = root / path
    try:
        beside = [entry.name for entry in os.scandir(wanted.parent)] if wanted.parent.is_dir() else []
    except OSError:
        beside = []
    near = next((name for name in beside if name.lower() == wanted.name.lower() or Path(name).stem == wanted.name), "")
    return Problem("without a file", path, f"tried {wanted}" + (f", there is {near}" if near else ""))


def refuse(name: str, problems: Sequence[Problem], total: int, how: Preparation) -> None:
    """Stop at rows that cannot be used, unless they are to be left out."""
    if problems and not how.skip_bad:
        advice = "correct them, or leave them out with data.skip_bad = true (`feddraw data prepare --skip-bad`)"
        raise UserError(f"{describe_problems(name, problems, total)}: {advice}")


def write_skipped(name: str, problems: Sequence[Problem], path: Path) -> None:
    """The list of what was left out, beside the images."""
    rows = [[problem.where, problem.what, problem.detail] for problem in problems]
    write_whole(path, csv_text([["where", "what", "detail"], *rows]).encode(), private=True)
    log.warning("%s: %d images left out, listed in %s", name, len(problems), path)


def normalization(how: str | Sequence[float], images: NDArray[np.uint8], rows: NDArray[np.intp]) -> tuple[float, float]:
    """Mean and standard deviation of pixel / 255: the paper's, given, or measured on the training images."""
    if how == "paper":
        return MEAN, STD
    if how == "measured":
        return measured(images, rows)
    if not numbers(how, 2) or float(how[1]) <= 0:
        raise UserError(f"normalize must be paper, measured, or a mean and a positive standard deviation, not {how!r}")
    return float(how[0]), float(how[1])


def measured(images: NDArray[np.uint8], rows: NDArray[np.intp]) -> tuple[float, float]:
    """From a count of each grey level, which is exact however many images there are."""
    counts = np.zeros(256, dtype=np.int64)
    for start in range(0, len(rows), 256):
        counts += np.bincount(images[rows[start : start + 256]].ravel(), minlength=256)
    levels = np.arange(256) / 255
    mean = float(np.average(levels, weights=counts))
    return mean, float(np.sqrt(np.average((levels - mean) ** 2, weights=counts))) or 1.0


def check_pydicom() -> None:
    if not installed("pydicom"):
        raise UserError("DICOM files need pydicom: pip install 'feddraw[dicom]'")

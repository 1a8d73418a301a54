"""From a table of images to a `Dataset`: leave out what cannot be used, prepare the rest once,
measure if asked to.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from feddraw.data import image_cache
from feddraw.data.dataset import Dataset
from feddraw.data.image_cache import FilesToCache, ImageSource, PreparedImages
from feddraw.data.image_settings import PAPER_MEAN, PAPER_STD, ImagePreparation, normalization
from feddraw.data.imaging import BadImage, require_pydicom_for
from feddraw.data.label_table import LabelTable, RowProblem, describe_row_problems
from feddraw.data.splits import rows_by_split
from feddraw.errors import UserError
from feddraw.system.csv_cells import csv_text
from feddraw.system.file_writing import write_whole

TRIED_IMAGES = 24  # images that are decoded when a data set is only looked at

log = logging.getLogger(__name__)


def dataset_from_files(name: str, root: Path, table: LabelTable, how: ImagePreparation) -> Dataset:
    """The data set of image files under a folder."""
    total = len(table.labels) + len(table.problems)
    stamps = [image_cache.file_stamp(root / path) for path in table.paths]
    there = np.array([row for row, found in enumerate(stamps) if found is not None], dtype=np.intp)
    lost = [
        missing_file_problem(root, path)
        for path, found in zip(table.paths, stamps, strict=True)
        if found is None
    ]
    table = table.take(there, lost)
    refuse_bad_rows(name, table.problems, total, how)
    rows_by_split(name, table.split)
    files = FilesToCache(root, table.paths, tuple(found for found in stamps if found is not None))
    require_pydicom_for(files.paths)
    return prepared_dataset(name, table, files, how)


def prepared_dataset(
    name: str, table: LabelTable, source: ImageSource, how: ImagePreparation
) -> Dataset:
    """The data set of images that are prepared now, or were before; where they are only looked at,
    of grey squares.
    """
    workers = how.processes
    if how.estimate is None:
        prepared = image_cache.prepare_images(source, how.recipe, name, workers, how.progress)
        return assembled_dataset(name, table, prepared, how)
    entry = image_cache.cache_entry(name, source.identity(), asdict(how.recipe))
    if (
        found := image_cache.open_finished_entry(entry, (len(source), how.size, how.size))
    ) is not None:
        return assembled_dataset(name, table, found, how)
    dataset = unprepared_dataset(name, table, source, how)
    how.estimate.bytes[entry] = dataset.images.size
    return dataset


def unprepared_dataset(
    name: str, table: LabelTable, source: ImageSource, how: ImagePreparation
) -> Dataset:
    """The data set with grey squares for images; a few of the images are tried, and what the rest
    costs is noted.
    """
    assert how.estimate is not None
    rows = np.unique(np.linspace(0, len(source) - 1, TRIED_IMAGES).astype(int))
    began = time.perf_counter()
    unread = []
    for row in rows:
        try:
            how.recipe.apply(source.read(row))
        except BadImage as error:
            unread.append(
                RowProblem("that cannot be read", str(table.labels.names[row]), str(error))
            )
    refuse_bad_rows(name, unread, len(rows), how)
    how.estimate.images += len(source)
    how.estimate.seconds += (time.perf_counter() - began) / len(rows) * len(source)
    grey = np.broadcast_to(np.uint8(128), (len(source), how.size, how.size))
    return Dataset(
        name, grey, table.labels, rows_by_split(name, table.split), PAPER_MEAN, PAPER_STD
    )


def assembled_dataset(
    name: str, table: LabelTable, prepared: PreparedImages, how: ImagePreparation
) -> Dataset:
    """The data set of prepared images, without those that turned out bad."""
    unread = [
        RowProblem("that cannot be read", str(table.labels.names[row]), why)
        for row, why in prepared.bad.items()
    ]
    refuse_bad_rows(name, unread, len(table.labels), how)
    if problems := (*table.problems, *unread):
        write_skipped_rows(name, problems, prepared.entry / "skipped.csv")
    split = table.split.copy()
    split[list(prepared.bad)] = -1  # their black squares stay in the array, in no split
    rows = rows_by_split(name, split)
    mean, std = normalization(how.normalize, prepared.images, rows["train"])
    return Dataset(name, prepared.images, table.labels, rows, mean, std)


def missing_file_problem(root: Path, path: str) -> RowProblem:
    """A row without a file: what was tried, and a file of nearly the same name if there is one."""
    wanted = root / path
    try:
        beside = (
            [entry.name for entry in os.scandir(wanted.parent)] if wanted.parent.is_dir() else []
        )
    except OSError:
        beside = []
    near = next(
        (
            name
            for name in beside
            if name.lower() == wanted.name.lower() or Path(name).stem == wanted.name
        ),
        "",
    )
    return RowProblem(
        "without a file", path, f"tried {wanted}" + (f", there is {near}" if near else "")
    )


def refuse_bad_rows(
    name: str, problems: Sequence[RowProblem], total: int, how: ImagePreparation
) -> None:
    """Stop at rows that cannot be used, unless they are to be left out."""
    if problems and not how.skip_bad:
        advice = (
            "correct them, or leave them out with data.skip_bad = true (`feddraw data prepare"
            " --skip-bad`)"
        )
        raise UserError(f"{describe_row_problems(name, problems, total)}: {advice}")


def write_skipped_rows(name: str, problems: Sequence[RowProblem], path: Path) -> None:
    """The list of what was left out, beside the images."""
    rows = [[problem.where, problem.what, problem.detail] for problem in problems]
    write_whole(path, csv_text([["where", "what", "detail"], *rows]).encode(), private=True)
    log.warning("%s: %d images left out, listed in %s", name, len(problems), path)

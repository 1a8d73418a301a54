"""From a table of images to a `Dataset`: leave out what cannot be used, prepare the rest once,
measure if asked to.
"""

from __future__ import annotations

import logging
import os
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from feddraw.data import image_cache
from feddraw.data.dataset import Dataset
from feddraw.data.image_cache import FilesToCache, ImageSource, PreparedImages
from feddraw.data.image_facts import dicom_modality
from feddraw.data.image_folder import require_pydicom_for
from feddraw.data.image_settings import PAPER_MEAN, PAPER_STD, ImagePreparation, normalization
from feddraw.data.imaging import BadImage
from feddraw.data.label_table import (
    LabelTable,
    RowProblem,
    describe_row_problems,
    rows_or_images,
)
from feddraw.data.splits import rows_by_split
from feddraw.errors import UserError
from feddraw.system.csv_cells import csv_text
from feddraw.system.file_writing import write_whole
from feddraw.text import safe_line

TRIED_IMAGES = 24  # images that are decoded when a data set is only looked at
ASKED_FOR_MODALITY = 100  # DICOM files that are opened to see what they were taken with
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg")

log = logging.getLogger(__name__)


def dataset_from_files(
    name: str, root: Path, table: LabelTable, how: ImagePreparation, *, eight_bits: bool = False
) -> Dataset:
    """The data set of image files under a folder; `eight_bits` says that all are known to be PNG or
    JPEG of 8 bits, which need not be opened to know that.
    """
    total = len(table.labels) + len(table.problems)
    there: list[int] = []
    stamps: list[tuple[int, int]] = []
    missing: list[RowProblem] = []
    for row, path in enumerate(table.paths):
        stamp = image_cache.file_stamp(root / path)
        if stamp is None:
            missing.append(missing_file_problem(root, path))
        else:
            there.append(row)
            stamps.append(stamp)
    table = table.take(np.array(there, dtype=np.intp), missing)
    refuse_bad_rows(name, table.problems, total, how)
    rows_by_split(name, table.split)
    require_pydicom_for(root / path for path in table.paths)
    files = FilesToCache(
        root,
        table.paths,
        tuple(stamps),
        channels=how.channels,
        levels=how.recipe.levels,
        eight_bits=eight_bits,
    )
    dataset = prepared_dataset(name, table, files, how)
    return replace(dataset, modalities=_modalities(root, table.paths))


def _modalities(root: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """What DICOM files name, some of which are opened, from all parts of the table."""
    may_be_dicom = [path for path in paths if not path.lower().endswith(PICTURE_SUFFIXES)]
    some = may_be_dicom[:: max(1, len(may_be_dicom) // ASKED_FOR_MODALITY)]
    return tuple(sorted({dicom_modality(root / path) for path in some} - {""}))


def prepared_dataset(
    name: str, table: LabelTable, source: ImageSource, how: ImagePreparation
) -> Dataset:
    """The data set of images that are prepared now, or were before; where they are only looked at,
    of grey squares.
    """
    if how.estimate is None:
        prepared = image_cache.prepare_images(
            source, how.recipe, name, workers=how.processes, progress=how.progress
        )
        return assembled_dataset(name, table, prepared, how)
    entry = image_cache.cache_entry(name, source.identity(), how.recipe.key())
    finished = image_cache.open_finished_entry(entry, (len(source), *how.recipe.shape))
    if finished is not None:
        return assembled_dataset(name, table, finished, how)
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
    grey = np.broadcast_to(np.uint8(128), (len(source), *how.recipe.shape))
    splits = rows_by_split(name, table.split)
    return Dataset(name, grey, table.labels, splits, mean=PAPER_MEAN, std=PAPER_STD)


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
    detail = f"tried {wanted}"
    if wanted.is_dir():
        return RowProblem("without a file", path, f"{detail}, which is a folder")
    if wanted.is_symlink():
        return RowProblem("without a file", path, f"{detail}, a link that leads to no file")
    try:
        names = [entry.name for entry in os.scandir(wanted.parent)]
    except OSError:  # there is no such folder
        names = []
    for name in names:
        if unicodedata.normalize("NFC", name) == unicodedata.normalize("NFC", wanted.name):
            detail += ", there is one whose accents or umlauts are written with other characters"
            break
        if name.lower() == wanted.name.lower() or Path(name).stem == wanted.name:
            detail += f", there is {name}"
            break
    return RowProblem("without a file", path, detail)


def refuse_bad_rows(
    name: str, problems: Sequence[RowProblem], total: int, how: ImagePreparation
) -> None:
    """Stop at rows that cannot be used, unless they are to be left out."""
    if problems and not how.skip_bad:
        raise UserError(
            f"{describe_row_problems(name, problems, total)}: correct them, or leave them out with"
            " data.skip_bad = true"
        )


def write_skipped_rows(name: str, problems: Sequence[RowProblem], path: Path) -> None:
    """The list of what was left out, beside the images."""
    rows = [[problem.where, problem.what, problem.detail] for problem in problems]
    write_whole(path, csv_text([["where", "what", "detail"], *rows]).encode(), private=True)
    kind = rows_or_images(problems)
    if len(problems) == 1:
        kind = kind.removesuffix("s")
    log.warning("%s: %d %s left out, listed in %s", safe_line(name), len(problems), kind, path)

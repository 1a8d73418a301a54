"""The image files that a user's table names: which folder their paths start from, and whether they
can be read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath

import numpy as np

from feddraw.data import own_tables
from feddraw.data.image_facts import ImageFacts, look_at
from feddraw.data.imaging import BadImage, decode
from feddraw.data.label_table import LabelTable, RowProblem
from feddraw.data.own_tables import DOTS_IN_PATH, OUTSIDE_FOLDER
from feddraw.errors import UserError

TRYING_SECONDS = 5.0  # for decoding images, to see whether they can be read
FIRST_PATHS = 50  # of a table, by which the folder is found


def image_folder(sheets: Sequence[Path], class_column: str = "") -> str:
    """The folder below or above the table that its first paths start from; empty if that is the
    table's own.
    """
    if len(sheets) > 1:
        return ""
    settings = own_tables.TableSettings(class_column=class_column)
    source = own_tables.open_tables(sheets, settings, sheets[0].parent)[0]
    first_rows = islice(source.sheet.rows(), FIRST_PATHS)
    first_paths = [fields[source.layout.path].strip() for _, fields in first_rows]
    for folder in image_folder_candidates(sheets[0].parent, first_paths):
        names = [own_tables.path_inside_folder(path, folder) for path in first_paths]
        if any(name is not None and (folder / name).is_file() for name in names):
            return "" if folder == sheets[0].parent else str(folder)
    return ""


def image_folder_candidates(home: Path, paths: Sequence[str]) -> Iterator[Path]:
    """Where images may lie: beside the table, in a folder there, or in one that all paths name."""
    yield home
    try:
        yield from sorted(
            folder
            for folder in home.iterdir()
            if folder.is_dir() and not folder.name.startswith(".")
        )
    except OSError:
        return
    absolute = [path for path in paths if PurePosixPath(path).is_absolute()]
    if absolute and len(absolute) == len(paths):
        common = Path(os.path.commonpath([str(PurePosixPath(path).parent) for path in absolute]))
        if len(common.parts) > 2:  # never the whole disk
            yield common


def no_image_found(shown_as: Path, root: Path, table: LabelTable, images: str) -> str:
    """That no image is where it should be, with what was tried."""
    if not table.paths:
        bad = table.problems[0]
        detail = f" ({bad.detail})" if bad.detail else ""
        why = f"{shown_as} has no row that can be used: {bad.where} {bad.what}{detail}"
        if bad.what in (OUTSIDE_FOLDER, DOTS_IN_PATH):
            why += "; give the folder that paths start from with `feddraw init --images FOLDER`"
        return why
    first = table.paths[0]
    folders = [root] if images else list(image_folder_candidates(root, [first]))
    tried = ", ".join(str(folder / first) for folder in folders[:4])
    where = "give their folder with `feddraw init --images FOLDER`"
    return f"{shown_as}: none of its {len(table.paths):,} images was found; tried {tried}: {where}"


def first_image_side(folder: Path, paths: Iterable[str]) -> int:
    """Of the first image that can be read."""
    first_paths = list(islice(paths, 20))
    why = ""
    for path in first_paths:
        try:
            return int(min(decode(folder / path).shape))
        except BadImage as error:
            why = why or f"{folder / path}: {error}"
    raise UserError(
        f"none of the first {len(first_paths)} images that the table names can be read; {why}"
    )


def try_images(
    folder: Path, paths: Sequence[str], seconds: float = TRYING_SECONDS
) -> tuple[list[RowProblem], dict[str, ImageFacts]]:
    """Decode as many images as the time allows, from all parts of the table: which cannot be read,
    and what the others are, by path.
    """
    until = time.monotonic() + seconds
    facts: dict[str, ImageFacts] = {}
    bad = {}
    for place in np.random.default_rng(0).permutation(len(paths)).tolist():
        if time.monotonic() > until:
            break
        try:
            facts[paths[place]] = look_at(folder / paths[place])
        except BadImage as error:
            bad[place] = str(error)
    problems = [
        RowProblem("that cannot be read", paths[place], why) for place, why in sorted(bad.items())
    ]
    return problems, facts

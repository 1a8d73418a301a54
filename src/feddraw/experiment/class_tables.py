"""Tables that are made for `init`: from a folder with one subfolder per class, with a column that
names the class of each image; and from a column that may name several findings of an image, with
one column for each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from feddraw.data import table_columns
from feddraw.data.class_column import MOST_CLASSES
from feddraw.data.csv_sheet import CsvSheet
from feddraw.data.image_folder import files_below
from feddraw.data.label_cells import BLANK, CELL_WORDS
from feddraw.errors import UserError
from feddraw.system.csv_cells import csv_text
from feddraw.text import grouped, join_names

LABEL_COLUMNS = (
    "label",
    "labels",
    "finding",
    "findings",
    "findinglabels",
    "class",
    "classes",
    "category",
    "diagnosis",
    "befund",
    "befunde",
    "diagnose",
)
# Names that are no class of their own.
NORMAL_CLASSES = (
    "normal",
    "no finding",
    "nofinding",
    "no_finding",
    "healthy",
    "none",
    "negative",
    "kein befund",
    "ohne befund",
    "unauffällig",
    "gesund",
)
CLASS = "class"  # the column of a table that is made of folders


@dataclass(frozen=True)
class ClassTable:
    """A table that was made of class names and is not written yet."""

    content: str  # CSV
    class_column: str  # that names the one class of each image; empty: a column for each finding
    notes: tuple[str, ...]  # how the names were read


# ------------------------------------------------------------------------------------- from folders


def table_of_class_folders(folder: Path) -> ClassTable:
    """Of a folder of images: the class of each is the folder that it is in."""
    files = files_below(folder)
    rows = _rows_of_class_folders(folder, files.images)
    classes = {row[CLASS] for row in rows}
    if not 2 <= len(classes) <= MOST_CLASSES:
        raise UserError(
            f"found {len(classes)} classes in {len(rows):,} labelled images: give a CSV with one"
            " column per finding (0 or 1), a column of class names, or a folder with one subfolder"
            " per class"
        )
    filled = [name for name in rows[0] if any(row[name] for row in rows)]
    return ClassTable(
        content=csv_text([filled, *([row[name] for name in filled] for row in rows)]),
        class_column=CLASS,
        notes=(
            _class_folders_in_words(rows),
            *_images_without_class(folder, files.images),
            *_folders_without_images(folder, rows),
            *files.left_out_in_words(),
        ),
    )


def _rows_of_class_folders(folder: Path, images: Sequence[Path]) -> list[dict[str, str]]:
    """One row per image: its class is the folder it is in, its split a folder above it called
    train, val or test, its site what other folders lie above it.
    """
    rows = []
    for path in sorted(images):
        inside = path.relative_to(folder)
        if len(inside.parts) < 2:
            continue
        *above, label = inside.parts[:-1]
        split = next((name for name in above if name.lower() in table_columns.SPLIT_NAMES), "")
        site = "/".join(name for name in above if name != split)
        rows.append({"path": inside.as_posix(), "split": split.lower(), "site": site, CLASS: label})
    if not _are_sites(rows):
        rows = [row | {"site": ""} for row in rows]
    return rows


def _are_sites(rows: Sequence[Mapping[str, str]]) -> bool:
    """Whether the folders above the classes look like sites: every image has one, and some class is
    in several (folders of patients below folders of classes share none).
    """
    sites_of_class = grouped((row[CLASS], row["site"]) for row in rows)
    several = any(len(set(sites)) > 1 for sites in sites_of_class.values())
    return several and all(row["site"] for row in rows)


def _images_without_class(folder: Path, images: Sequence[Path]) -> list[str]:
    """A sentence about images that lie in the folder itself, and so in none of a class."""
    names = [path.name for path in images if path.parent == folder]
    if not names:
        return []
    files = "1 image is" if len(names) == 1 else f"{len(names):,} images are"
    return [f"{files} in no class's folder and not used: {join_names(names)}"]


def _folders_without_images(folder: Path, rows: Sequence[Mapping[str, str]]) -> list[str]:
    """A sentence about folders, of a site or of a class, that have no image in them or below them,
    where there are some; of such folders in one another the outermost is named.
    """
    paths = (PurePosixPath(row["path"]) for row in rows)
    with_images = {parent for path in paths for parent in path.parents}
    empty = []
    for place, below, _ in os.walk(folder):
        above = PurePosixPath(Path(place).relative_to(folder).as_posix())
        shown = sorted(name for name in below if not name.startswith("."))
        shown = [name for name in shown if not (Path(place) / name).is_symlink()]
        empty += [str(above / name) for name in shown if above / name not in with_images]
        below[:] = [name for name in shown if above / name in with_images]
    return [f"no image that can be used is in {join_names(empty)}"] if empty else []


def _class_folders_in_words(rows: Sequence[Mapping[str, str]]) -> str:
    """How the names of folders were read."""
    words = "the class of an image is the folder that it is in"
    if any(row["site"] for row in rows):
        words += "; its site is the folder above"
    return words


# ------------------------------------------------------------------------------------ from a column


def table_of_class_column(sheet: CsvSheet) -> ClassTable | None:
    """Of a table with one column of names, of which some image has several; None where there is no
    such column.
    """
    label = table_columns.column_by_usual_name(sheet.header, LABEL_COLUMNS)
    if label is None or not _names_several(sheet, label):
        return None
    path = table_columns.path_column(sheet)
    if path is None:
        return None
    kept = {sheet.header[column]: column for column in [path, *_columns_of_facts(sheet)]}
    kept["label"] = label
    rows = [{name: cells[column] for name, column in kept.items()} for _, cells in sheet.rows()]
    return ClassTable(
        content=_table_of_names(rows),
        class_column="",
        notes=tuple(_class_column_in_words(sheet.header[label], rows)),
    )


def _names_several(sheet: CsvSheet, column: int) -> bool:
    """Whether some cell names more than one finding."""
    return any(len(_names_in_cell(cells[column])) > 1 for _, cells in sheet.rows())


def _columns_of_facts(sheet: CsvSheet) -> Iterator[int]:
    """What else is known of an image: its split, site, patient and group."""
    for kind, names in table_columns.USUAL_COLUMN_NAMES.items():
        column = table_columns.column_by_usual_name(sheet.header, names)
        if kind != "path" and column is not None:
            yield column


def _class_column_in_words(column: str, rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Which names stand for no finding, and which may be several."""
    names = {name for row in rows for name in _names_in_cell(row["label"])}
    if normal := _names_of_no_finding(names):
        yield f"names in the column {column} that say no finding: {join_names(normal)}"
    if lists := sorted(name for name in names if "," in name):
        yield (
            f"'{lists[0]}' in the column {column} is read as one name: write | or ; between several"
        )


# ---------------------------------------------------------------------------------------- the table


def _table_of_names(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows with a `label`, several of them with | or ; between, as a table with one column per
    class.

    A row without a label is blank in all of them.
    """
    names_of_rows = [_names_in_cell(row["label"]) for row in rows]
    every = {name for names in names_of_rows for name in names}
    blank = {name for name in every if CELL_WORDS.get(name.lower()) == BLANK}
    classes = sorted((every - blank).difference(_names_of_no_finding(every)))
    if not rows or not classes or len(classes) > MOST_CLASSES:
        raise UserError(
            f"found {len(classes)} findings in {len(rows):,} labelled images: give a CSV with one"
            " column per finding (0 or 1)"
        )
    others = [name for name in rows[0] if name != "label" and any(row[name] for row in rows)]
    lines: list[list[str | int]] = []
    for row, names in zip(rows, names_of_rows, strict=True):
        facts = [row[name] for name in others]
        is_blank = blank.issuperset(names)
        labels = ["" if is_blank else int(name in names) for name in classes]
        lines.append([*facts, *labels])
    return csv_text([[*others, *classes], *lines])


def _names_in_cell(text: str) -> list[str]:
    """The names in a cell, several of them with | or ; between."""
    return [name.strip() for name in re.split(r"[|;]", text)]


def _names_of_no_finding(names: Iterable[str]) -> list[str]:
    """Those that are no class of their own."""
    return sorted({name for name in names if name.lower() in NORMAL_CLASSES})

"""Inspect a user's data: where the images lie, which columns are what, how many rows can be used.

A table with one column per finding is used as it is; several, one per site, are used together. A
single column of class names, or a folder with one subfolder per class, is first written out as such
a table beside the experiment file.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import numpy as np

from feddraw.data import own_tables, table_columns
from feddraw.data.csv_sheet import CsvSheet
from feddraw.data.dataset import SPLITS
from feddraw.data.dataset_from_table import missing_file_problem
from feddraw.data.finding_counts import ClientCounts, class_notes
from feddraw.data.image_folder import FolderFiles, files_below
from feddraw.data.imaging import BadImage, decode, require_pydicom_for
from feddraw.data.label_cells import (
    ABSENT,
    BLANK,
    CELL_WORDS,
    NO_COLUMN,
    PRESENT,
    UNCERTAIN,
    label_in_cell,
)
from feddraw.data.label_table import DUPLICATE, LabelTable, RowProblem
from feddraw.data.own_tables import OUTSIDE_FOLDER
from feddraw.data.scenarios.by_site import MIN_SITE_IMAGES
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
# A column that only an archive has, its data set, and what lies beside the table in the archive's
# own folder.
KNOWN_ARCHIVES = {
    "Frontal/Lateral": ("chexpert", "valid.csv", "train.csv"),
    "Finding Labels": ("nih", "test_list.txt"),
}
MOST_LABEL_CLASSES = 50
TRYING_SECONDS = 5.0  # for decoding images, to see whether they can be read
SAMPLED_ROWS = 2000  # rows that guesses are based on
UNCLEAR_CELLS = {BLANK: "blank", UNCERTAIN: "uncertain", NO_COLUMN: "without the column"}


@dataclass(frozen=True, eq=False)
class InspectedData:
    """What there is."""

    sheets: tuple[Path, ...]
    # The folder that the tables' paths start from; none where it is each table's own.
    images: Path | None
    written: str  # the table itself, where it had to be made
    # Path, split, site, patient: the columns' names, empty where there is none.
    columns: Mapping[str, str]
    table: LabelTable
    guesses: tuple[str, ...]  # which columns are used and how, where that is not obvious
    missing: tuple[RowProblem, ...]  # rows without a file
    unread: tuple[RowProblem, ...]  # rows whose image was tried and cannot be read
    tried: int  # images that were tried
    pixels: int  # the shorter side of the first image

    @property
    def sites(self) -> dict[str, int]:
        """Training images of each site."""
        labels = self.table.labels
        return (
            {}
            if labels.sites is None
            else dict(Counter(labels.sites[self.table.split == 0].tolist()))
        )

    @property
    def large_sites(self) -> dict[str, int]:
        """Those with enough training images to be clients."""
        return {site: count for site, count in self.sites.items() if count >= MIN_SITE_IMAGES}

    def positives(self, label: int = 1) -> dict[str, list[int]]:
        """Images known to be with each finding (0: without it) in the training, validation and test
        split.
        """
        labels = self.table.labels
        counts = [
            (labels.truth(self.table.split_rows(split)) == label).sum(axis=0).tolist()
            for split in SPLITS
        ]
        return {
            name: [of_split[c] for of_split in counts] for c, name in enumerate(labels.findings)
        }

    def marks(self) -> dict[str, dict[int, int]]:
        """How many cells of each finding say present, absent, uncertain, or nothing."""
        assert self.table.marks is not None
        codes = (PRESENT, ABSENT, *UNCLEAR_CELLS)
        columns = zip(self.table.labels.findings, self.table.marks.T, strict=True)
        return {
            name: {code: int((column == code).sum()) for code in codes} for name, column in columns
        }

    def unlabelled(self) -> Iterator[str]:
        """Sites that do not label a finding at all."""
        labels = self.table.labels
        if labels.known is None or labels.sites is None:
            return
        for site in sorted(set(labels.sites.tolist())):
            known = labels.known[labels.sites == site].any(axis=0)
            if lacking := [
                name for name, there in zip(labels.findings, known, strict=True) if not there
            ]:
                yield f"{', '.join(lacking)} at {site}"

    @property
    def has_duplicates(self) -> bool:
        """Whether an image has more than one row."""
        return any(problem.what.startswith(DUPLICATE) for problem in self.table.problems)

    def class_notes(self) -> list[str]:
        """What users should know of sites whose training images lack a class, of all findings or of
        some.
        """
        labels = self.table.labels
        if labels.sites is None:
            return []
        training = self.table.split == 0
        counts = [
            ClientCounts.of(site, labels, np.flatnonzero(training & (labels.sites == site)))
            for site in self.large_sites
        ]
        return class_notes(counts, labels.findings)

    def sizes(self) -> list[int]:
        return [len(self.table.split_rows(split)) for split in SPLITS]


def inspect_data(paths: Path | Sequence[Path], out: Path, images: str = "") -> InspectedData:
    """What CSVs, or a folder with CSVs or with one subfolder per class, hold."""
    tables = [paths] if isinstance(paths, Path) else list(paths)
    for path in tables:
        if not path.exists():
            raise UserError(f"no file or folder {path}")
        if path.suffix.lower() in (".zip", ".tar", ".tgz", ".7z"):
            raise UserError(f"{path} is an archive: unpack it and give the folder or its table")
        if path.suffix == ".toml":
            raise UserError(f"{path} is an experiment file already: feddraw run {path}")
        if path.suffix == ".npz":
            raise UserError(
                f"{path} needs no experiment file: feddraw run --data {path} --scenario iid"
            )
    if len(tables) == 1 and tables[0].is_dir():
        folder = tables[0]
        tables = own_tables.csv_tables_in(folder)
        if not tables:
            files = files_below(folder)
            rows = inspect_class_folders(folder, files.images)
            class_table = inspected_class_table(rows)
            inspected = inspect_made_table(out.with_suffix(".csv"), str(folder), class_table)
            about_folders = class_folders_in_words(rows, files)
            return replace(inspected, guesses=(*about_folders, *inspected.guesses))
    sheets = [own_tables.find_table(path) for path in tables]
    for sheet in sheets:
        header = CsvSheet.of(sheet).header
        for known, (name, *beside) in KNOWN_ARCHIVES.items():
            if known in header and any((sheet.parent / file).is_file() for file in beside):
                how = f"feddraw run --data {name} --set data.path={sheet.parent}"
                raise UserError(f"{sheet} is a known archive: {how}")
    class_table = with_class_columns(CsvSheet.of(sheets[0])) if len(sheets) == 1 else ""
    if class_table:
        inspected = inspect_made_table(
            out.with_name(f"{out.stem}-labels.csv"),
            images or str(sheets[0].parent),
            class_table,
            original=sheets[0],
        )
        about_classes = class_column_in_words(CsvSheet.of(sheets[0]))
        return replace(inspected, guesses=(*about_classes, *inspected.guesses))
    return inspect_tables(sheets, images, shown_as=sheets[0])


def inspect_made_table(
    sheet: Path, images: str, content: str, original: Path | None = None
) -> InspectedData:
    """As `inspect_tables`, for a table that is made from another or from class folders and not
    written yet.
    """
    with TemporaryDirectory() as folder:
        temporary = Path(folder) / sheet.name
        temporary.write_text(content, encoding="utf-8")
        inspected = inspect_tables([temporary], images, shown_as=original or sheet)
    return replace(inspected, sheets=(sheet,), written=content)


def inspect_tables(sheets: Sequence[Path], images: str, shown_as: Path) -> InspectedData:
    """Read the tables, and find out what their columns are and which of their files are there;
    messages call the first table `shown_as`.
    """
    images = images or image_folder(sheets)
    root = own_tables.image_root(sheets, images)
    settings = own_tables.TableSettings(images=images)
    sources = own_tables.open_tables(sheets, settings, root)
    table = own_tables.read_own_tables(sheets, settings, root=root)
    columns = {}
    for kind in ("path", "split", "site", "patient"):
        places = [(source.sheet, getattr(source.layout, kind)) for source in sources]
        columns[kind] = next(
            (sheet.header[place] for sheet, place in places if place is not None), ""
        )
    missing = tuple(
        missing_file_problem(root, path) for path in table.paths if not (root / path).is_file()
    )
    if len(missing) == len(table.paths):
        raise UserError(no_image_found(shown_as, root, table, images))
    guesses_as_noted = set(own_tables.guesses_in_words(sources))
    table = replace(
        table, notes=tuple(note for note in table.notes if note not in guesses_as_noted)
    )
    file_names = [shown_as.name, *(sheet.name for sheet in sheets[1:])]
    missing_paths = {problem.where for problem in missing}
    present_paths = [path for path in table.paths if path not in missing_paths]
    require_pydicom_for(root / path for path in present_paths)
    unread, tried = try_images(root, present_paths)
    return InspectedData(
        sheets=tuple(sheets),
        images=root if images else None,
        written="",
        columns=columns,
        table=table,
        guesses=tuple(own_tables.guesses_in_words(sources, file_names)),
        missing=missing,
        unread=tuple(unread),
        tried=tried,
        pixels=first_image_side(root, present_paths),
    )


def image_folder(sheets: Sequence[Path]) -> str:
    """The folder below or above the table that its first paths start from; empty if that is the
    table's own.
    """
    if len(sheets) > 1:
        return ""
    source = own_tables.open_tables(sheets, own_tables.TableSettings(), sheets[0].parent)[0]
    first_rows = islice(source.sheet.rows(), 50)
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
        if bad.what == OUTSIDE_FOLDER:
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
) -> tuple[list[RowProblem], int]:
    """Decode as many images as the time allows, from all parts of the table: which cannot be read,
    and how many were tried.
    """
    until = time.monotonic() + seconds
    tried = 0
    bad = {}
    for place in np.random.default_rng(0).permutation(len(paths)).tolist():
        if time.monotonic() > until:
            break
        tried += 1
        try:
            decode(folder / paths[place])
        except BadImage as error:
            bad[place] = str(error)
    problems = [
        RowProblem("that cannot be read", paths[place], why) for place, why in sorted(bad.items())
    ]
    return problems, tried


def inspect_class_folders(folder: Path, images: Sequence[Path]) -> list[dict[str, str]]:
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
        rows.append(
            {"path": inside.as_posix(), "split": split.lower(), "site": site, "label": label}
        )
    if not _are_sites(rows):
        rows = [row | {"site": ""} for row in rows]
    return rows


def _are_sites(rows: Sequence[Mapping[str, str]]) -> bool:
    """Whether the folders above the classes look like sites: every image has one, and some class is
    in several (folders of patients below folders of classes share none).
    """
    sites_of_class = grouped((row["label"], row["site"]) for row in rows)
    several = any(len(set(sites)) > 1 for sites in sites_of_class.values())
    return several and all(row["site"] for row in rows)


def class_folders_in_words(rows: Sequence[Mapping[str, str]], files: FolderFiles) -> Iterator[str]:
    """How folders were read, and which files were not."""
    normal = sorted({row["label"] for row in rows if row["label"].lower() in NORMAL_CLASSES})
    words = "the class of an image is the folder that it is in"
    if normal:
        words += f", {join_names(normal)} for no finding"
    if any(row["site"] for row in rows):
        words += "; its site is the folder above"
    yield words
    yield from files.left_out_in_words()


def with_class_columns(sheet: CsvSheet) -> str:
    """The table with one column per class, where it has one column of class names; empty where it
    needs no change.
    """
    place = table_columns.column_by_usual_name(sheet.header, LABEL_COLUMNS)
    sample = [fields for _, fields in islice(sheet.rows(), SAMPLED_ROWS)]
    if place is None or all(label_in_cell(fields[place]) is not None for fields in sample):
        return ""
    if (path := table_columns.path_column(sheet)) is None:
        return ""
    others = [names for kind, names in table_columns.USUAL_COLUMN_NAMES.items() if kind != "path"]
    columns = [path, *(table_columns.column_by_usual_name(sheet.header, names) for names in others)]
    kept = {sheet.header[column]: column for column in columns if column is not None}
    kept["label"] = place
    return inspected_class_table(
        {name: fields[column] for name, column in kept.items()} for _, fields in sheet.rows()
    )


def class_names_in_cell(text: str) -> list[str]:
    """The names in a cell, several of them with | or ; between."""
    return [name.strip() for name in re.split(r"[|;]", text)]


def class_column_in_words(sheet: CsvSheet) -> Iterator[str]:
    """Which names in a table's column of class names stand for no finding."""
    place = table_columns.column_by_usual_name(sheet.header, LABEL_COLUMNS)
    assert place is not None, "a table without a column of class names"
    names = {name for _, fields in sheet.rows() for name in class_names_in_cell(fields[place])}
    if normal := sorted(name for name in names if name.lower() in NORMAL_CLASSES):
        yield f"names in the column {sheet.header[place]} that say no finding: {join_names(normal)}"
    if lists := sorted(name for name in names if "," in name):
        yield (
            f"'{lists[0]}' in the column {sheet.header[place]} is read as one name: write | or ;"
            " between several"
        )


def inspected_class_table(rows: Iterable[Mapping[str, str]]) -> str:
    """Rows with a `label`, several of them with | or ; between, as a table with one column per
    class.

    A row without a label is blank in all of them.
    """
    rows = list(rows)
    names_of_rows = [class_names_in_cell(row["label"]) for row in rows]
    every = {name for names in names_of_rows for name in names}
    blank = {name for name in every if CELL_WORDS.get(name.lower()) == BLANK}
    classes = sorted(name for name in every - blank if name.lower() not in NORMAL_CLASSES)
    if not rows or not classes or len(classes) > MOST_LABEL_CLASSES:
        raise UserError(
            f"found {len(classes)} classes in {len(rows):,} labelled images: give a CSV with one"
            " column per finding (0 or 1), a column of class names, or a folder with one subfolder"
            " per class"
        )
    others = [name for name in rows[0] if name != "label" and any(row[name] for row in rows)]
    lines = []
    for row, names in zip(rows, names_of_rows, strict=True):
        silent = blank.issuperset(names)
        lines.append(
            [
                *(row[name] for name in others),
                *("" if silent else int(name in names) for name in classes),
            ]
        )
    return csv_text([[*others, *classes], *lines])


def inspected_findings_without_auc(data: InspectedData) -> list[str]:
    """Findings without a positive or a negative image in some split: no AUC there."""
    negatives = data.positives(label=0)
    return [name for name, counts in data.positives().items() if 0 in [*counts, *negatives[name]]]


def unusable_rows(data: InspectedData) -> tuple[RowProblem, ...]:
    return (*data.table.problems, *data.missing, *data.unread)

"""Anyone's images: a CSV with a path and a column per finding beside a tree of PNG, JPEG or DICOM files.

Columns for the path, the split, the site and the patient are found by their usual names, the findings by their content;
every guess can be overruled by a setting. Without a split column patients are dealt to the splits by a seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import Dataset, Labels
from feddraw.data.preparation import Preparation, from_files
from feddraw.data.tables import (
    Findings,
    Intake,
    Problem,
    Sheet,
    Table,
    Uncertain,
    carve,
    choose,
    mark,
    numbers,
    policies,
)
from feddraw.errors import UserError, expanded

USUAL = {  # what such columns are called, in lower case and without blanks, dashes and underscores
    "path": ("path", "filepath", "file", "filename", "image", "imagepath", "imagefile", "imageindex", "dicom"),
    "split": ("split", "part", "subset", "partition", "set"),
    "site": ("site", "hospital", "centre", "center", "institution", "client"),
    "patient": ("patient", "patientid", "subject", "subjectid"),
    "group": ("group", "sex", "gender", "patientsex", "patientgender"),
}
SPLIT_NAMES = {
    "train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "validate": 1, "dev": 1, "test": 2, "testing": 2,
}  # fmt: skip
SUFFIXES = (".png", ".jpg", ".jpeg", ".dcm", ".dicom")
SAMPLE = 2000  # rows that guesses are based on


@dataclass(frozen=True)
class Layout:
    """Which column is what."""

    path: int
    split: int | None
    site: int | None
    patient: int | None
    group: int | None
    findings: dict[str, int]


def folder(
    how: Preparation,
    *,
    path: str,
    images: str = "",
    findings: Findings = "all",
    uncertain: Uncertain = None,
    path_column: str = "",
    split_column: str = "",
    site_column: str = "",
    patient_column: str = "",
    group_column: str = "",
    shares: Sequence[float] = (0.7, 0.1, 0.2),
    seed: int = 0,
) -> Dataset:
    """Your own CSV and PNG, JPEG or DICOM files (data.path).

    `path` is the CSV or its folder, `images` the folder that the paths in it start from.
    """
    sheet = find_sheet(expanded(path))
    columns = {"path": path_column, "split": split_column, "site": site_column, "patient": patient_column}
    columns |= {"group": group_column}
    root = expanded(images) if images else sheet.parent
    table = read_sheet(
        sheet, root=root, findings=findings, uncertain=uncertain, columns=columns, shares=shares, seed=seed
    )
    return from_files(sheet.name.removesuffix(".gz").removesuffix(".csv"), root, table, how)


def find_sheet(path: Path) -> Path:
    """The CSV itself, or the only one in a folder."""
    if path.is_file():
        return path
    found = sorted([*path.glob("*.csv"), *path.glob("*.csv.gz")]) if path.is_dir() else []
    if len(found) != 1:
        there = f"there are {', '.join(file.name for file in found[:5])}" if found else "there is none"
        raise UserError(f"{path}: a CSV, or a folder with one CSV in it, is needed; {there}")
    return found[0]


def read_sheet(
    path: Path,
    *,
    root: Path | None = None,
    findings: Findings = "all",
    uncertain: Uncertain = None,
    columns: Mapping[str, str] | None = None,
    shares: Sequence[float] = (0.7, 0.1, 0.2),
    seed: int = 0,
) -> Table:
    """The table of an own CSV, with every row in a split."""
    sheet = Sheet.of(path)
    layout = guess(sheet, columns or {}, findings)
    intake = Intake(layout.findings)
    kept: list[list[str]] = []
    for line, fields in sheet.rows():
        where = f"{path.name} line {line}"
        name = inside(fields[layout.path], root)
        split = None if layout.split is None else fields[layout.split].strip().lower()
        if name is None:
            intake.problems.append(Problem("without a path inside the folder", where, fields[layout.path][:80]))
        elif split is not None and split not in SPLIT_NAMES:
            intake.problems.append(Problem("with a split other than train, validation, test", where, f"'{split[:20]}'"))
        elif intake.add(name, fields, where):
            kept.append(fields)
    several = (column(kept, place) for place in (layout.patient, layout.site, layout.group))
    labels = intake.labels(policies(uncertain, tuple(layout.findings)), *several)
    given = column(kept, layout.split)
    numbered = None if given is None else np.array([SPLIT_NAMES[one.lower()] for one in given], dtype=np.int8)
    return Table(labels, tuple(intake.names), dealt(labels, numbered, shares, seed), tuple(intake.problems))


def column(rows: Sequence[Sequence[str]], place: int | None) -> list[str] | None:
    return None if place is None else [fields[place].strip() for fields in rows]


def inside(path: str, root: Path | None) -> str | None:
    """A path relative to the folder; nothing if it leads out of it, or can be no file's."""
    posix = PurePosixPath(path.strip().replace("\\", "/"))
    if posix.is_absolute() and root is not None and posix.is_relative_to(root.resolve().as_posix()):
        posix = posix.relative_to(root.resolve().as_posix())
    leaves = posix.is_absolute() or ".." in posix.parts or ":" in posix.parts[0] if posix.parts else True
    long = any(len(part.encode(errors="replace")) > 255 for part in posix.parts) or len(path) > 2000
    return None if leaves or long or "\0" in path else str(posix)


def dealt(labels: Labels, split: NDArray[np.int8] | None, shares: Sequence[float], seed: int) -> NDArray[np.int8]:
    """Splits for rows that have none: all without a split column, validation out of training if only that lacks."""
    if not numbers(shares, 3) or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise UserError(f"shares must be three positive numbers that sum to 1, not {shares}")
    if split is None:
        split = np.zeros(len(labels), dtype=np.int8)
        split[carve(labels, np.arange(len(labels)), shares[2], seed)] = 2
    if not (split == 1).any():
        training = np.flatnonzero(split == 0)
        split[carve(labels, training, shares[1] / (shares[0] + shares[1]), seed + 1)] = 1
    return split


# ---------------------------------------------------------------------------------------------------- guesses


def guess(sheet: Sheet, columns: Mapping[str, str], findings: Findings) -> Layout:
    """What each column is: as named by the user, else by its usual name, else by what is in it."""
    places = {kind: place_of(sheet, columns.get(kind, ""), usual) for kind, usual in USUAL.items()}
    sample = [fields for _, fields in islice(sheet.rows(), SAMPLE)]
    if places["path"] is None:
        places["path"] = next(holding_paths(sheet, sample), None)
    if places["path"] is None:
        raise UserError(
            f"{sheet.path} has no column with image paths; it has {', '.join(sheet.header)} (data.path_column)"
        )
    taken = {place for place in places.values() if place is not None}
    if findings == "all":
        usable = [place for place in range(len(sheet.header)) if place not in taken and holds_marks(sample, place)]
    else:
        usable = [place for place in range(len(sheet.header)) if place not in taken]
    chosen = choose(findings, [sheet.header[place] for place in usable], str(sheet.path))
    if not chosen:
        raise UserError(f"{sheet.path} has no column of labels (0, 1, -1 or blank); name them with data.findings")
    return Layout(
        places["path"],
        places["split"],
        places["site"],
        places["patient"],
        places["group"],
        {name: usable[place] for name, place in chosen.items()},
    )


def place_of(sheet: Sheet, named: str, usual: Sequence[str]) -> int | None:
    if named:
        return sheet.column(named)
    plain = [name.lower().replace(" ", "").replace("_", "").replace("-", "") for name in sheet.header]
    return next((plain.index(name) for name in usual if name in plain), None)


def holding_paths(sheet: Sheet, sample: Sequence[Sequence[str]]) -> Iterator[int]:
    """Columns whose first entry ends like an image."""
    return (place for place in range(len(sheet.header)) if sample and sample[0][place].lower().endswith(SUFFIXES))


def holds_marks(sample: Sequence[Sequence[str]], place: int) -> bool:
    """Nearly all entries are labels, and not all are blank: the few others are then mistakes to be told."""
    known = [mark(fields[place]) is not None for fields in sample]
    filled = any(fields[place].strip() for fields in sample)
    return filled and sum(known) >= 0.9 * len(known)

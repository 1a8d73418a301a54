"""Which column of an own table is what: by the name that the user gives, by usual names, or by what
is in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from feddraw.data.class_column import ClassCells, ClassColumn
from feddraw.data.csv_sheet import CsvSheet
from feddraw.data.finding_names import FindingChoice, canonical_finding, listed_findings
from feddraw.data.label_cells import ColumnCells
from feddraw.data.subgroups import SubgroupColumn
from feddraw.errors import UserError
from feddraw.text import plain_name

# what such columns are called, in lower case and without blanks, dashes and underscores
USUAL_COLUMN_NAMES = {
    "path": (
        "path",
        "filepath",
        "file",
        "filename",
        "image",
        "imagepath",
        "imagefile",
        "imageindex",
        "dicom",
        "bild",
        "bilddatei",
        "datei",
        "dateiname",
        "pfad",
    ),
    "split": ("split", "part", "subset", "partition", "set"),
    "site": (
        "site",
        "hospital",
        "centre",
        "center",
        "institution",
        "client",
        "klinik",
        "krankenhaus",
        "standort",
        "zentrum",
    ),
    "patient": (
        "patient",
        "patientid",
        "subject",
        "subjectid",
        "patientenid",
        "patientennummer",
        "patientennr",
    ),
    "group": ("group", "sex", "gender", "patientsex", "patientgender", "geschlecht"),
}
SPLIT_NAMES = {
    "train": 0,
    "training": 0,
    "val": 1,
    "valid": 1,
    "validation": 1,
    "validate": 1,
    "dev": 1,
    "test": 2,
    "testing": 2,
}
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".dcm", ".dicom")


@dataclass(frozen=True)
class TableColumns:
    """Which column is what."""

    path: int
    split: int | None
    site: int | None
    patient: int | None
    group: int | None
    findings: dict[str, int]  # under the table's own names, or as the user lists them
    columns: dict[str, ColumnCells] = field(default_factory=dict)  # of the findings
    others: dict[str, str] = field(default_factory=dict)  # columns that are not used, and why
    # of the subgroups, in their order; None where the table lacks the column
    subgroups: tuple[int | None, ...] = ()

    @property
    def unusual_entries(self) -> dict[str, str]:
        """Findings with entries other than 0, 1, -1 and blank, and how those are read."""
        entries = {name: column.unusual_entries() for name, column in self.columns.items()}
        return {name: readings for name, readings in entries.items() if readings}


def guess_columns(
    sheet: CsvSheet,
    named: Mapping[str, str],
    findings: FindingChoice,
    may_lack: bool,
    of_classes: ClassColumn | None = None,
    subgroups: Sequence[SubgroupColumn] = (),
) -> TableColumns:
    """What each column is.

    `named` has the columns that the user names, by kind, `subgroups` those that tell subgroups;
    `may_lack`: a finding that is asked for need not be in this table. Where a column names the
    class of each image, there are no findings but `of_classes`.
    """
    columns = read_columns(sheet)
    if not any(column.values for column in columns):
        raise UserError(f"{sheet.path} has a header but no rows")
    places = {
        kind: _column_of_kind(sheet, named.get(kind, ""), kind, columns)
        for kind in USUAL_COLUMN_NAMES
    }
    label = None if of_classes is None else sheet.column(of_classes.name)
    places = {
        kind: None if place == label and not named.get(kind) else place
        for kind, place in places.items()
    }
    path = places["path"]
    if path is None:
        there = ", ".join(sheet.header)
        raise UserError(
            f"{sheet.path} has no column with image paths; it has {there} (data.path_column)"
        )
    of_subgroups = tuple(column.place(sheet.header) for column in subgroups)
    taken = {*places.values(), *of_subgroups}
    rest = {
        column.name: place
        for place, column in enumerate(columns)
        if place not in taken and column.name
    }
    unnamed = any(not column.name and place not in taken for place, column in enumerate(columns))
    if of_classes is not None:
        assert label is not None
        return TableColumns(
            path=path,
            split=places["split"],
            site=places["site"],
            patient=places["patient"],
            group=places["group"],
            findings=dict.fromkeys(of_classes.classes, label),
            columns={
                name: ClassCells(
                    of_classes.name, of_class=name, classes=frozenset(of_classes.classes)
                )
                for name in of_classes.classes
            },
            subgroups=of_subgroups,
        )
    if findings == "all":
        others = _columns_without_labels(columns, rest)
        chosen = {name: place for name, place in rest.items() if name not in others}
    else:
        chosen = _listed_columns(findings, rest, str(sheet.path), may_lack)
        others = {
            name: "not among data.findings"
            for name, place in rest.items()
            if place not in chosen.values()
        }
    if unnamed:
        others = {"(unnamed)": "has no name", **others}
    if findings == "all" and not chosen and not may_lack:
        reasons = "; ".join(f"{name} {why}" for name, why in others.items())
        raise UserError(
            f"{sheet.path} has no column of labels (0, 1, -1 or blank):"
            f" {reasons or 'it has no other column'} (data.findings). A column of classes is named"
            " by data.class_column"
        )
    return TableColumns(
        path=path,
        split=places["split"],
        site=places["site"],
        patient=places["patient"],
        group=places["group"],
        findings=chosen,
        columns={name: columns[place] for name, place in chosen.items()},
        others=others,
        subgroups=of_subgroups,
    )


def _columns_without_labels(
    columns: Sequence[ColumnCells], places: Mapping[str, int]
) -> dict[str, str]:
    """Which of the columns are no findings, and why."""
    reasons = {name: columns[place].why_no_labels() for name, place in places.items()}
    return {name: why for name, why in reasons.items() if why}


def path_column(sheet: CsvSheet, named: str = "") -> int | None:
    """The column of image paths, by the name that is given, its usual name or its content."""
    return _column_of_kind(sheet, named, "path", read_columns(sheet))


def read_columns(sheet: CsvSheet) -> list[ColumnCells]:
    """What every column of a table holds."""
    names = [name for name in sheet.header if name]
    if image := next((name for name in names if name.lower().endswith(IMAGE_SUFFIXES)), ""):
        raise UserError(
            f"{sheet.path} has no column names, its first line holds {image}: put a line with a"
            " name for each column above it"
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"{sheet.path} has two columns called '{twice[0]}': give each column its own name"
        )
    columns = [ColumnCells(name) for name in sheet.header]
    for _, fields in sheet.rows():
        for column, text in zip(columns, fields, strict=False):
            column.add(text)
    return columns


def _column_of_kind(
    sheet: CsvSheet, named: str, kind: str, columns: Sequence[ColumnCells]
) -> int | None:
    """The column of a kind: paths and splits must also look like such."""
    if named:
        return sheet.column(named)
    usual = column_by_usual_name(sheet.header, USUAL_COLUMN_NAMES[kind])
    if kind == "path" and (usual is None or not _holds_paths(columns[usual])):
        return next((place for place, column in enumerate(columns) if _holds_paths(column)), usual)
    if kind == "split" and usual is not None and not _holds_splits(columns[usual]):
        return None
    return usual


def column_by_usual_name(header: Sequence[str], usual: Sequence[str]) -> int | None:
    plain = [plain_name(name) for name in header]
    return next((plain.index(name) for name in usual if name in plain), None)


def _holds_paths(column: ColumnCells) -> bool:
    """Most entries end like images."""
    entries = [word.lower() for word in column.values if word]
    images = sum(word.endswith(IMAGE_SUFFIXES) for word in entries)
    return 2 * images > len(entries)


def _holds_splits(column: ColumnCells) -> bool:
    """Some entry is the name of a split."""
    return any(word.lower() in SPLIT_NAMES for word in column.values)


def _listed_columns(
    findings: FindingChoice, rest: Mapping[str, int], where: str, may_lack: bool
) -> dict[str, int]:
    """The findings that the user lists, and where they are; capitals and underscores do not
    matter.
    """
    wanted = listed_findings(findings)
    if twice := sorted({name for name in wanted if wanted.count(name) > 1}):
        raise UserError(f"data.findings lists {twice[0]} twice")
    by_spelling = {canonical_finding(name).lower(): place for name, place in rest.items()}
    places = {
        name: rest.get(name, by_spelling.get(canonical_finding(name).lower())) for name in wanted
    }
    missing = [name for name, place in places.items() if place is None]
    if missing and not may_lack:
        raise UserError(f"{where} has no finding {', '.join(missing)}; it has {', '.join(rest)}")
    return {name: place for name, place in places.items() if place is not None}

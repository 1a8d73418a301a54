"""Tables of anyone's own images: found below a path, read one or several together, and split by
patient.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path, PurePosixPath
from shlex import quote

import numpy as np

from feddraw.data.class_column import ClassColumn, chosen_classes
from feddraw.data.csv_sheet import CsvSheet
from feddraw.data.dataset import CLASSES_TASK
from feddraw.data.finding_names import FindingChoice, canonical_finding, listed_findings
from feddraw.data.label_cells import CellPolicy, cell_meanings
from feddraw.data.label_table import NO_SITE, LabelColumns, LabelTable, RowProblem, TableIntake
from feddraw.data.splits import split_own_rows
from feddraw.data.subgroups import SubgroupColumn, subgroup_cells, subgroup_places
from feddraw.data.table_columns import SPLIT_NAMES, TableColumns, guess_columns, read_columns
from feddraw.errors import NoSuchPath, UserError, one_of
from feddraw.system.file_reading import expanded_path
from feddraw.text import distinct_ends, grouped, join_names

OUTSIDE_FOLDER = "without a path inside the folder"
DOTS_IN_PATH = "with '..' in the path, which is refused also inside the folder: write it without"
MISSING_COLUMNS = ("refuse", "unknown")


@dataclass(frozen=True)
class TableSettings:
    """How tables of one's own are read; see the data set `folder`."""

    images: str = ""  # the folder that paths start from; empty: that of their table
    findings: FindingChoice = "all"
    # the column that names the class of each image, in place of findings; and the classes
    class_column: str = ""
    classes: FindingChoice = "all"
    blank: CellPolicy = "unknown"
    uncertain: CellPolicy = "unknown"
    missing_columns: str = "refuse"
    columns: Mapping[str, str] = field(default_factory=dict)  # kind -> name, where the user says
    shares: Sequence[float] = (0.7, 0.1, 0.2)
    seed: int = 0
    subgroups: Sequence[SubgroupColumn] = ()

    @property
    def may_lack(self) -> bool:
        """Whether a finding that is asked for need not have a column."""
        return self.missing_columns == "unknown"


# ------------------------------------------------------------------------------ finding the files


def find_tables(path: str | Sequence[str]) -> list[Path]:
    """The CSV itself, the only one in a folder, or those of a list."""
    listed = [path] if isinstance(path, str) else path
    if (
        not isinstance(listed, Sequence)
        or not listed
        or not all(isinstance(entry, str) and entry for entry in listed)
    ):
        raise UserError(f"data.path must be a CSV, a folder, or a list of CSVs, not {path!r}")
    tables = [find_table(expanded_path(entry)) for entry in listed]
    files = [table.resolve() for table in tables]
    for table, file in zip(tables, files, strict=True):
        if files.count(file) > 1:
            raise UserError(f"data.path names {table} twice")
    return tables


def find_table(path: Path) -> Path:
    """The CSV itself, or the only one in a folder."""
    if path.is_file():
        return path
    if not path.exists():
        raise NoSuchPath(
            f"no file or folder {path}: a CSV, or a folder with one CSV, is needed", path
        )
    tables = csv_tables_in(path)
    if len(tables) == 1:
        return tables[0]
    there = "there is none"
    if tables:
        there = f"there are {', '.join(table.name for table in tables[:5])}"
    elif any(entry.is_dir() for entry in path.iterdir()):
        there += f"; if its subfolders are classes: feddraw init {quote(str(path))}"
    raise UserError(f"{path}: a CSV, or a folder with one CSV in it, is needed; {there}")


def csv_tables_in(folder: Path) -> list[Path]:
    """The CSVs of a folder, also packed ones."""
    return sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")]) if folder.is_dir() else []


def image_root(tables: Sequence[Path], images: str = "") -> Path:
    """The folder that all images are in."""
    if images:
        return expanded_path(images)
    if len(tables) == 1:
        return tables[0].parent
    return Path(os.path.commonpath([_absolute(table.parent) for table in tables]))


def joined_names(tables: Sequence[Path]) -> str:
    """A name for several tables."""
    more = f"+{len(tables) - 3}" if len(tables) > 3 else ""
    return "+".join(map(_stem, tables[:3])) + more


def path_inside_folder(path: str, root: Path | None) -> str | None:
    """A path relative to the folder; nothing if it leads out of it, or can be no file's."""
    if "\0" in path or len(path) > 2000:
        return None
    posix = PurePosixPath(path.strip().replace("\\", "/"))
    for base in () if root is None else (root.absolute().as_posix(), root.resolve().as_posix()):
        if posix.is_absolute() and posix.is_relative_to(base):
            posix = posix.relative_to(base)
    if not posix.parts or posix.is_absolute() or ".." in posix.parts or ":" in posix.parts[0]:
        return None
    if any(len(part.encode(errors="replace")) > 255 for part in posix.parts):
        return None
    return str(posix)


def _why_no_path(path: str) -> str:
    """Why `path_inside_folder` refuses a path that is written down."""
    parts = PurePosixPath(path.replace("\\", "/")).parts
    return DOTS_IN_PATH if ".." in parts else OUTSIDE_FOLDER


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute() keeps the dots


def _stem(table: Path) -> str:
    return table.name.removesuffix(".gz").removesuffix(".csv")


def _distinct_stems(tables: Sequence[Path]) -> list[str]:
    """The files' names, with as many of their folders' as tell them apart."""
    stems = distinct_ends({str(table): (*table.parts[:-1], _stem(table)) for table in tables})
    return [stems[str(table)] for table in tables]


# ---------------------------------------------------------------------------------- reading them


class TableKind(Enum):
    """What a table's name says of its rows."""

    ALONE = "nothing: it is the only table"
    PART = "nothing: it is one of several, whose columns tell splits and sites"
    SPLIT = "the split of all its rows: train.csv beside test.csv"
    SITE = "the site of all its rows: north.csv beside south.csv"

    @classmethod
    def of(cls, layout: TableColumns, *, several: bool, named_by_split: bool) -> TableKind:
        """`named_by_split`: all tables have names of splits."""
        if not several:
            return cls.ALONE
        if named_by_split and layout.split is None:
            return cls.SPLIT
        return cls.SITE if layout.site is None else cls.PART


@dataclass(frozen=True, eq=False)
class OwnTable:
    """One table, and what is known of it besides its rows."""

    sheet: CsvSheet
    layout: TableColumns
    kind: TableKind
    name: str  # of the file, with folders where that tells tables apart
    base: Path | None  # where its paths start
    prefix: str  # of its images' names, from the common root

    @property
    def site(self) -> str | None:
        """Of all its rows, where its name tells it."""
        return self.name if self.kind is TableKind.SITE else None

    @property
    def split(self) -> int | None:
        """Of all its rows, where its name tells it."""
        return SPLIT_NAMES[self.name.lower()] if self.kind is TableKind.SPLIT else None

    def label_columns(self, findings: Sequence[str]) -> LabelColumns:
        """Where these findings are in its rows, each of which it may lack."""
        places = {name: self.layout.findings.get(name) for name in findings}
        return LabelColumns(places, self.layout.columns)


def read_own_tables(
    paths: Sequence[Path],
    settings: TableSettings = TableSettings(),  # noqa: B008 - it is frozen
    *,
    root: Path | None = None,
) -> LabelTable:
    """The table of own CSVs, with every row in a split; `root` is the folder of all images."""
    one_of("missing_columns", settings.missing_columns, MISSING_COLUMNS)
    tables = open_tables(paths, settings, root)
    names = _findings_of_all(tables, settings)
    blank = cell_meanings("blank", settings.blank, names, {})
    uncertain = cell_meanings("uncertain", settings.uncertain, names, {})
    if not settings.may_lack:
        subgroup_places(settings.subgroups, {str(t.sheet.path): t.sheet.header for t in tables})
    intake = TableIntake(names, settings.subgroups)
    for table in tables:
        _take_rows(table, table.label_columns(names), intake)
    labelled = intake.table(blank, uncertain)
    if settings.class_column:
        labelled = replace(labelled, labels=replace(labelled.labels, task=CLASSES_TASK))
    patients = intake.column("patient")
    if patients is not None:
        known = np.array(_patients_or_names(patients, list(intake.rows)), dtype=np.str_)
        labelled = replace(labelled, labels=replace(labelled.labels, patients=known))
    labelled = replace(labelled, split=split_own_rows(labelled, settings.shares, settings.seed))
    guesses = guesses_in_words(tables) if settings.findings == "all" else ()
    return replace(labelled, notes=(*guesses, *_warnings(labelled, patients)))


def open_tables(
    paths: Sequence[Path], settings: TableSettings, root: Path | None
) -> list[OwnTable]:
    """The tables with their layouts; a column of a kind that one has, all must have."""
    several = len(paths) > 1
    if several:  # they are found from their common folder
        paths = [_absolute(path) for path in paths]
        root = None if root is None else _absolute(root)
    sheets = [CsvSheet.of(path) for path in paths]
    may_lack = settings.may_lack or several
    of_classes = _class_column(sheets, settings)
    layouts = [
        guess_columns(
            sheet,
            settings.columns,
            settings.findings,
            may_lack,
            of_classes,
            subgroups=settings.subgroups,
        )
        for sheet in sheets
    ]
    _require_alike(paths, layouts)
    names = _distinct_stems(paths)
    named_by_split = all(name.lower() in SPLIT_NAMES for name in names)
    paths_start_beside_table = several and not settings.images
    tables = []
    for path, sheet, layout, name in zip(paths, sheets, layouts, names, strict=True):
        base = root
        prefix = ""
        if root is not None and paths_start_beside_table and path.parent != root:
            base = path.parent
            prefix = base.relative_to(root).as_posix()
        tables.append(
            OwnTable(
                sheet=sheet,
                layout=layout,
                kind=TableKind.of(layout, several=several, named_by_split=named_by_split),
                name=name,
                base=base,
                prefix=prefix,
            )
        )
    return tables


def _class_column(sheets: Sequence[CsvSheet], settings: TableSettings) -> ClassColumn | None:
    """The column that names the class of each image, and the classes; None where there is none."""
    if not settings.class_column:
        if settings.classes != "all":
            raise UserError(
                "data.classes needs data.class_column, which names the class of each image"
            )
        return None
    for name in ("findings", "blank", "uncertain"):
        if getattr(settings, name) not in ("all", "unknown"):
            raise UserError(
                f"data.{name} is for columns of findings, and data.class_column ="
                f" {settings.class_column} says one class per image: leave one of them out"
            )
    cells = [read_columns(sheet)[sheet.column(settings.class_column)] for sheet in sheets]
    return chosen_classes(settings.class_column, settings.classes, cells)


def _require_alike(paths: Sequence[Path], layouts: Sequence[TableColumns]) -> None:
    """Splits and patients are told by all tables, or by none."""
    for kind in ("split", "patient"):
        has = [getattr(layout, kind) is not None for layout in layouts]
        if any(has) and not all(has):
            with_column = paths[has.index(True)].name
            without = paths[has.index(False)].name
            raise UserError(
                f"{with_column} has a column for the {kind} and {without} has none: all tables"
                " need one, or none"
            )


def _findings_of_all(tables: Sequence[OwnTable], settings: TableSettings) -> tuple[str, ...]:
    """The findings of all tables together: as listed, or in the order in which they are met."""
    met = tuple(dict.fromkeys(name for table in tables for name in table.layout.findings))
    if settings.class_column:
        return met
    if settings.findings == "all" or (len(tables) == 1 and not settings.may_lack):
        if not met:
            raise UserError(
                f"{tables[0].sheet.path} has no column of labels (0, 1, -1 or blank)"
                " (data.findings)"
            )
        _refuse_two_spellings(tables)
        return met
    wanted = listed_findings(settings.findings)
    missing = [name for name in wanted if name not in met]
    if missing and not settings.may_lack:
        where = ", ".join(table.sheet.path.name for table in tables)
        raise UserError(
            f"no column called {', '.join(missing)} in {where}; they have {', '.join(met)}"
        )
    return wanted


def _refuse_two_spellings(tables: Sequence[OwnTable]) -> None:
    """Tables that write one finding in two ways would make two of it."""
    seen: dict[str, tuple[str, str]] = {}
    for table in tables:
        for name in table.layout.findings:
            file = table.sheet.path.name
            first, first_file = seen.setdefault(canonical_finding(name).lower(), (name, file))
            if first != name:
                raise UserError(
                    f"'{first}' in {first_file} and '{name}' in {file} look like one finding: give"
                    " both columns one name, or list data.findings in an experiment file"
                )


def _take_rows(table: OwnTable, label_columns: LabelColumns, intake: TableIntake) -> None:
    """Those that can be used; the others are noted."""
    layout = table.layout
    columns = len(table.sheet.header)
    for line, cells in table.sheet.rows():
        where = f"{table.sheet.path.name} line {line}"
        path = path_inside_folder(cells[layout.path], table.base)
        split = "" if layout.split is None else cells[layout.split].strip().lower()
        if len(cells) > columns and any(map(str.strip, cells[columns:])):
            detail = f"{len(cells)} cells for {columns} columns"
            intake.problems.append(RowProblem("with more cells than columns", where, detail))
        elif path is None:
            detail = cells[layout.path].strip()[:80]
            what = _why_no_path(cells[layout.path]) if detail else "without a path"
            intake.problems.append(RowProblem(what, where, detail))
        elif layout.split is not None and split not in SPLIT_NAMES:
            what = "with a split other than train, validation, test"
            intake.problems.append(RowProblem(what, where, f"'{split[:20]}'"))
        else:
            site = _cell(cells, layout.site)
            patient = _cell(cells, layout.patient)
            if patient and table.kind is TableKind.SITE:
                patient = f"{table.site}: {patient}"  # sites number their patients for themselves
            intake.add(
                f"{table.prefix}/{path}" if table.prefix else path,
                cells,
                label_columns,
                where,
                site=table.site if site is None else site or NO_SITE,
                patient=patient,
                group=_cell(cells, layout.group),
                subgroups=subgroup_cells(cells, layout.subgroups),
                split=table.split if layout.split is None else SPLIT_NAMES[split],
            )


def _cell(cells: Sequence[str], place: int | None) -> str | None:
    """In one spelling: some systems write ö as o and two dots."""
    return None if place is None else unicodedata.normalize("NFC", cells[place].strip())


def _patients_or_names(patients: Sequence[str], names: Sequence[str]) -> list[str]:
    """For each blank id one made of the image's name: images without a patient are not all of one
    patient.
    """
    taken = set(patients)
    ids = []
    for patient, name in zip(patients, names, strict=True):
        if patient:
            ids.append(patient)
            continue
        unknown_id = f"unknown patient of {name}"
        while unknown_id in taken:
            unknown_id += "'"
        ids.append(unknown_id)
    return ids


# ------------------------------------------------------------------------- what users should know


def guesses_in_words(
    tables: Sequence[OwnTable], file_names: Sequence[str] | None = None
) -> Iterator[str]:
    """What was taken for a finding and what was not, and entries that are read though they are
    unusual; the tables are called as their files unless other names are given.
    """
    if file_names is None:
        file_names = [table.sheet.path.name for table in tables]
    for table, file in zip(tables, file_names, strict=True):
        layout = table.layout
        if layout.others:
            unused = "; ".join(f"{name} ({why})" for name, why in layout.others.items())
            yield f"{file}: findings are {', '.join(layout.findings)}; not used: {unused}"
        for name, readings in layout.unusual_entries.items():
            yield f"{file}: {name} is read with {readings}"


def _warnings(table: LabelTable, patients: Sequence[str] | None) -> Iterator[str]:
    """What makes sites or a split less trustworthy."""
    if table.labels.sites is not None:
        spellings = grouped((site.casefold(), site) for site in np.unique(table.labels.sites))
        for sites in spellings.values():
            if len(sites) > 1:
                yield f"{join_names(sites)} are read as {len(sites)} sites: is it one?"
    if patients is None:
        return
    blank = sum(not patient for patient in patients)
    if blank:
        what = "images have no patient id: each counts"
        if blank == 1:
            what = "image has no patient id: it counts"
        yield f"{blank:,} {what} as a separate patient, so one patient may be in two splits"
    assert table.labels.patients is not None
    pairs = set(zip(table.labels.patients.tolist(), table.split.tolist(), strict=True))
    splits_of_patient = Counter(patient for patient, _ in pairs)
    if shared := sum(splits > 1 for splits in splits_of_patient.values()):
        yield (
            f"{shared:,} patients are in more than one split of the table: test results will look"
            " too good"
        )

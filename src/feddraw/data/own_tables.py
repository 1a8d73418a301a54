"""Tables of anyone's own images: found below a path, read one or several together, and split by
patient.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from feddraw.data.csv_sheet import CsvSheet
from feddraw.data.finding_names import FindingChoice, canonical_finding, listed_findings
from feddraw.data.label_cells import CellPolicy, cell_meanings
from feddraw.data.label_table import LabelTable, RowProblem, TableIntake
from feddraw.data.splits import split_own_rows
from feddraw.data.table_columns import SPLIT_NAMES, TableColumns, guess_columns
from feddraw.errors import UserError, one_of
from feddraw.system.file_reading import expanded_path

Paths = Sequence[Path]
NO_SITE = "(no site)"
MISSING_COLUMNS = ("refuse", "unknown")


def find_own_tables(path: str | Sequence[str]) -> list[Path]:
    """The CSV itself, the only one in a folder, or those of a list."""
    listed = [path] if isinstance(path, str) else path
    if (
        not isinstance(listed, Sequence)
        or not listed
        or not all(isinstance(one, str) and one for one in listed)
    ):
        raise UserError(f"data.path must be a CSV, a folder, or a list of CSVs, not {path!r}")
    found = [find_own_table(expanded_path(one)) for one in listed]
    files = [one.resolve() for one in found]
    if twice := [one for one, file in zip(found, files, strict=True) if files.count(file) > 1]:
        raise UserError(f"data.path names {twice[0]} twice")
    return found


def find_own_table(path: Path) -> Path:
    """The CSV itself, or the only one in a folder."""
    if path.is_file():
        return path
    found = csv_tables_in(path)
    if len(found) != 1:
        there = (
            f"there are {', '.join(file.name for file in found[:5])}" if found else "there is none"
        )
        raise UserError(f"{path}: a CSV, or a folder with one CSV in it, is needed; {there}")
    return found[0]


def csv_tables_in(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")]) if folder.is_dir() else []


def own_image_root(sheets: Paths, images: str = "") -> Path:
    """The folder that all images are in."""
    if images:
        return expanded_path(images)
    if len(sheets) == 1:
        return sheets[0].parent
    return Path(os.path.commonpath([_absolute_path(sheet.parent) for sheet in sheets]))


def _absolute_path(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute() keeps the dots


def table_file_stem(sheet: Path) -> str:
    return sheet.name.removesuffix(".gz").removesuffix(".csv")


def joined_table_names(sheets: Paths) -> str:
    return "+".join(map(table_file_stem, sheets[:3])) + (
        f"+{len(sheets) - 3}" if len(sheets) > 3 else ""
    )


def path_inside_folder(path: str, root: Path | None) -> str | None:
    """A path relative to the folder; nothing if it leads out of it, or can be no file's."""
    posix = PurePosixPath(path.strip().replace("\\", "/"))
    for base in () if root is None else (root.absolute().as_posix(), root.resolve().as_posix()):
        if posix.is_absolute() and posix.is_relative_to(base):
            posix = posix.relative_to(base)
    leaves = (
        posix.is_absolute() or ".." in posix.parts or ":" in posix.parts[0] if posix.parts else True
    )
    long = any(len(part.encode(errors="replace")) > 255 for part in posix.parts) or len(path) > 2000
    return None if leaves or long or "\0" in path else str(posix)


@dataclass(frozen=True, eq=False)
class OwnTable:
    """One table, and what is known of it besides its rows."""

    sheet: CsvSheet
    layout: TableColumns
    base: Path | None  # where its paths start
    prefix: str  # of its images' names, from the common root
    site: str | None  # of all its rows, where it has no site column
    split: int | None  # of all its rows, where it has no split column


def read_own_tables(  # noqa: PLR0913 - as the data set's settings
    paths: Paths,
    *,
    root: Path | None = None,
    images: str = "",
    findings: FindingChoice = "all",
    blank: CellPolicy = "unknown",
    uncertain: CellPolicy = "unknown",
    missing_columns: str = "refuse",
    columns: Mapping[str, str] | None = None,
    shares: Sequence[float] = (0.7, 0.1, 0.2),
    seed: int = 0,
) -> LabelTable:
    """The table of own CSVs, with every row in a split."""
    one_of("missing_columns", missing_columns, MISSING_COLUMNS)
    sources = open_own_tables(
        paths, root, images, columns or {}, findings, missing_columns == "unknown"
    )
    names = findings_of_own_tables(sources, findings, missing_columns == "unknown")
    intake = TableIntake({})
    for source in sources:
        intake.findings = {name: source.layout.findings.get(name) for name in names}
        intake.columns = source.layout.columns
        _take_own_rows(source, intake, several=len(sources) > 1)
    intake.findings = dict.fromkeys(names)
    patients = intake.column("patient")
    table = intake.table(
        cell_meanings("blank", blank, names, {}), cell_meanings("uncertain", uncertain, names, {})
    )
    if patients is not None:
        known = np.array(own_table_patients(patients, [*intake.rows]), dtype=np.str_)
        table = replace(table, labels=replace(table.labels, patients=known))
    table = replace(table, split=split_own_rows(table, shares, seed))
    guesses = own_table_guesses_in_words(sources) if findings == "all" else ()
    return replace(table, notes=(*guesses, *own_table_warnings(table, patients)))


def open_own_tables(
    paths: Paths,
    root: Path | None,
    images: str,
    named: Mapping[str, str],
    findings: FindingChoice,
    may_lack: bool,
) -> list[OwnTable]:
    """The tables with their layouts; a column of a kind that one has, all must have."""
    several = len(paths) > 1
    if several:  # they are found from their common folder
        paths = [_absolute_path(path) for path in paths]
        root = None if root is None else _absolute_path(root)
    sheets = [CsvSheet.of(path) for path in paths]
    layouts = [guess_columns(sheet, named, findings, may_lack or several) for sheet in sheets]
    for kind in ("split", "patient"):
        has = [getattr(layout, kind) is not None for layout in layouts]
        if any(has) and not all(has):
            one = paths[has.index(True)].name
            other = paths[has.index(False)].name
            raise UserError(
                f"{one} has a column for the {kind} and {other} has none: all tables need one, or"
                " none"
            )
    stems = distinct_table_stems(paths)
    by_split = (
        several and all(name.lower() in SPLIT_NAMES for name in stems) and layouts[0].split is None
    )
    sources = []
    for path, sheet, layout, name in zip(paths, sheets, layouts, stems, strict=True):
        base = root if images or not several or root is None else path.parent
        prefix = (
            ""
            if base is None or root is None or base == root
            else base.relative_to(root).as_posix()
        )
        site = name if several and not by_split and layout.site is None else None
        sources.append(
            OwnTable(
                sheet, layout, base, prefix, site, SPLIT_NAMES[name.lower()] if by_split else None
            )
        )
    return sources


def distinct_table_stems(paths: Paths) -> list[str]:
    """The files' names, with as many of their folders' as tell them apart."""
    for depth in range(max(len(path.parts) for path in paths)):
        stems = ["/".join((*path.parts[-1 - depth : -1], table_file_stem(path))) for path in paths]
        if len(set(stems)) == len(stems):
            return stems
    return [str(path) for path in paths]


def findings_of_own_tables(
    sources: Sequence[OwnTable], findings: FindingChoice, may_lack: bool
) -> tuple[str, ...]:
    """The findings of all tables together: as listed, or in the order in which they are met."""
    met = tuple(dict.fromkeys(name for source in sources for name in source.layout.findings))
    if findings == "all" or (len(sources) == 1 and not may_lack):
        if not met:
            raise UserError(
                f"{sources[0].sheet.path} has no column of labels (0, 1, -1 or blank)"
                " (data.findings)"
            )
        _refuse_spellings_in_own_tables(met)
        return met
    wanted = listed_findings(findings)
    missing = [name for name in wanted if name not in met]
    if missing and not may_lack:
        where = ", ".join(source.sheet.path.name for source in sources)
        raise UserError(
            f"no column called {', '.join(missing)} in {where}; they have {', '.join(met)}"
        )
    return wanted


def _refuse_spellings_in_own_tables(names: Sequence[str]) -> None:
    """Tables that write one finding in two ways would make two of it."""
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(canonical_finding(name).lower(), name)
        if first != name:
            raise UserError(
                f"'{first}' and '{name}' look like one finding: give it one name, or list"
                " data.findings"
            )


def _take_own_rows(source: OwnTable, intake: TableIntake, several: bool) -> None:
    """Those that can be used; the others are noted."""
    layout = source.layout
    file = source.sheet.path.name
    for line, fields in source.sheet.rows():
        where = f"{file} line {line}"
        name = path_inside_folder(fields[layout.path], source.base)
        written = "" if layout.split is None else fields[layout.split].strip().lower()
        if len(fields) > len(source.sheet.header) and any(
            map(str.strip, fields[len(source.sheet.header) :])
        ):
            detail = f"{len(fields)} cells for {len(source.sheet.header)} columns"
            intake.problems.append(RowProblem("with more cells than columns", where, detail))
        elif name is None:
            intake.problems.append(
                RowProblem("without a path inside the folder", where, fields[layout.path][:80])
            )
        elif layout.split is not None and written not in SPLIT_NAMES:
            detail = f"'{written[:20]}'"
            intake.problems.append(
                RowProblem("with a split other than train, validation, test", where, detail)
            )
        else:
            places = {"site": layout.site, "patient": layout.patient, "group": layout.group}
            about = {
                kind: None if place is None else fields[place].strip()
                for kind, place in places.items()
            }
            if about["patient"] and several and source.site is not None:
                about["patient"] = (
                    # sites number their patients for themselves
                    f"{source.site}: {about['patient']}"
                )
            about["site"] = source.site if about["site"] is None else about["site"] or NO_SITE
            number = source.split if layout.split is None else SPLIT_NAMES[written]
            intake.add(
                f"{source.prefix}/{name}" if source.prefix else name,
                fields,
                where,
                **about,
                split=number,
            )


def own_table_guesses_in_words(sources: Sequence[OwnTable]) -> Iterator[str]:
    """What was taken for a finding and what was not, and entries that are read though they are
    unusual.
    """
    for source in sources:
        file = source.sheet.path.name
        layout = source.layout
        if layout.others:
            said = "; ".join(f"{name} ({why})" for name, why in layout.others.items())
            yield f"{file}: findings are {', '.join(layout.findings)}; not used: {said}"
        for name, said in layout.unusual_entries.items():
            yield f"{file}: {name} is read with {said}"


def own_table_warnings(table: LabelTable, patients: Sequence[str] | None) -> Iterator[str]:
    """What makes a split less trustworthy."""
    if patients is None:
        return
    if blank := sum(not patient for patient in patients):
        what = (
            "image has no patient id: it counts"
            if blank == 1
            else "images have no patient id: each counts"
        )
        yield f"{blank:,} {what} as a separate patient, so one patient may be in two splits"
    assert table.labels.patients is not None
    pairs = {*zip(table.labels.patients.tolist(), table.split.tolist(), strict=True)}
    if shared := sum(splits > 1 for splits in Counter(patient for patient, _ in pairs).values()):
        yield (
            f"{shared:,} patients are in more than one split of the table: test results will look"
            " too good"
        )


def own_table_patients(patients: Sequence[str], names: Sequence[str]) -> list[str]:
    """Each blank id in its own name's place: images without a patient are not all of one
    patient.
    """
    taken = set(patients)
    found = []
    for patient, name in zip(patients, names, strict=True):
        own = patient or f"unknown patient of {name}"
        while not patient and own in taken:
            own += "'"
        found.append(own)
    return found

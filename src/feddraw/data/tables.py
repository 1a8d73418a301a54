"""Label tables: CSV sheets of any size but not of every size, findings by name, and rows that cannot be used."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import FINDINGS, SPLITS, Labels, Split
from feddraw.data.label_cells import NO_COLUMN, UNCERTAIN, Column, plain_mark, resolve
from feddraw.errors import UserError
from feddraw.grouping import grouped
from feddraw.system.csv_cells import from_csv_cell

MAX_TEXT = 2**30  # characters of a sheet, unpacked
MAX_LINE = 2**20
SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")
MAX_LINES = 2**22  # of a sheet, blank ones too: twenty times the largest set of radiographs
MAX_RATIO = 100  # characters for a byte of a .gz: tables shrink to a tenth, a bomb to a thousandth

# ChestX-ray14's findings in MedMNIST's order, under the paper's names.
FOURTEEN = (
    "Atelectasis", "Cardiomegaly", "Pleural Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia", "Pneumothorax",
    "Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural Thickening", "Hernia",
)  # fmt: skip

Findings = str | Sequence[str]  # "paper", "all", or names

_KNOWN = {name.lower(): name for name in (*FOURTEEN, *FINDINGS)} | {"effusion": "Pleural Effusion"}


@dataclass(frozen=True)
class Problem:
    """One row that cannot be used."""

    what: str  # "without a file": rows with the same trouble are counted together
    where: str
    detail: str = ""


@dataclass(frozen=True, eq=False)
class Table:
    """The usable rows of a data set, and the others."""

    labels: Labels
    paths: tuple[str, ...]  # relative to the folder; empty where only labels are read
    split: NDArray[np.int8]  # (n,), which of SPLITS each row belongs to
    problems: tuple[Problem, ...] = ()
    marks: NDArray[np.int8] | None = None  # (n, findings), the cells before blank and uncertain ones were decided
    notes: tuple[str, ...] = ()  # what the user should know of the table

    def split_rows(self, split: Split) -> NDArray[np.intp]:
        return np.flatnonzero(self.split == SPLITS.index(split))

    def take(self, rows: NDArray[np.intp], problems: Sequence[Problem] = ()) -> Table:
        """Some of the rows, with why the others are left out."""
        paths = tuple(self.paths[row] for row in rows)
        return replace(
            self,
            labels=self.labels.take(rows),
            paths=paths,
            split=self.split[rows],
            problems=(*self.problems, *problems),
            marks=None if self.marks is None else self.marks[rows],
        )


# ---------------------------------------------------------------------------------------------------- sheets


@dataclass(frozen=True)
class Sheet:
    """A CSV file, also .gz, read line by line."""

    path: Path
    header: tuple[str, ...]
    delimiter: str

    @classmethod
    def of(cls, path: Path, columns: int = 2) -> Sheet:
        """The file with the separator that its first line has most of; with at least so many columns."""
        with open_text(path) as file:
            first = next(limited(file, path), "")
        delimiter = max(",;\t", key=first.count)
        header = next(csv.reader([first], delimiter=delimiter), [])
        if len(header) < columns:
            raise UserError(f"{path} is no table: its first line should name columns, with commas between")
        return cls(path, tuple(from_csv_cell(name.strip()) for name in header), delimiter)

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and fields of each row that is not blank; short rows are filled up."""
        try:
            with open_text(self.path) as file:
                reader = csv.reader(limited(file, self.path), delimiter=self.delimiter)
                next(reader)
                for fields in reader:
                    if fields:
                        filled = fields + [""] * (len(self.header) - len(fields))
                        yield reader.line_num, list(map(from_csv_cell, filled))
        except (csv.Error, EOFError, OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {self.path}: {error}") from error

    def column(self, name: str) -> int:
        """Where a column is."""
        if name not in self.header:
            raise UserError(f"{self.path} has no column '{name}'; it has {', '.join(self.header)}")
        return self.header.index(name)


def open_text(path: Path) -> IO[str]:
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"cannot read {path}: it is not a regular file")
        if path.suffix.lower() in SPREADSHEETS:
            raise UserError(f"{path} is a spreadsheet, not a CSV: save it as CSV in UTF-8")
        if path.suffix == ".gz":
            return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def limited(file: IO[str], path: Path) -> Iterator[str]:
    """The lines of a file, as long as they look like a table's: a small .gz can unpack to anything."""
    total = lines = 0
    try:
        most = max(2**26, MAX_RATIO * path.stat().st_size) if path.suffix == ".gz" else MAX_TEXT
        while line := file.readline(MAX_LINE):
            total, lines = total + len(line), lines + 1
            if len(line) == MAX_LINE or total > min(most, MAX_TEXT) or lines > MAX_LINES:
                raise UserError(f"{path} is no table: a line or the whole of it is too long")
            yield line
    except (EOFError, OSError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text, save it as CSV in UTF-8: {error}") from error


# ---------------------------------------------------------------------------------------------------- findings


def canonical(name: str) -> str:
    """A finding's name as the paper spells it, if it is one that we know."""
    words = " ".join(name.replace("_", " ").split())
    return _KNOWN.get(words.lower(), words)


def listed_findings(findings: Findings) -> tuple[str, ...]:
    """The paper's findings, or those of a list."""
    listed = findings.split(",") if isinstance(findings, str) else findings
    if not isinstance(listed, Sequence) or not listed:
        raise UserError(f"findings must be paper, all, or a list of names, not {findings!r}")
    return FINDINGS if findings == "paper" else tuple(str(name).strip() for name in listed)


def choose(findings: Findings, available: Sequence[str], where: str) -> dict[str, int]:
    """Which of the columns are wanted: name -> place among the available."""
    places = {canonical(name): place for place, name in enumerate(available)}
    if len(places) < len(available):
        raise UserError(f"{where} has two columns for one finding among {', '.join(available)}")
    if findings == "all":
        return places
    wanted = tuple(map(canonical, listed_findings(findings)))
    if missing := [name for name in wanted if name not in places]:
        raise UserError(f"{where} has no finding {', '.join(missing)}; it has {', '.join(places)}")
    return {name: places[name] for name in wanted}


@dataclass
class Intake:
    """The rows of a table as they are read, without those that cannot be used."""

    findings: Mapping[str, int | None]  # name -> field of a row; none where the table lacks the column
    columns: Mapping[str, Column] = field(default_factory=dict)  # how each finding's cells are read
    marks: list[list[int]] = field(default_factory=list)
    rows: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # by name: path, split, patient, site, group
    problems: list[Problem] = field(default_factory=list)

    def add(self, name: str, fields: Sequence[str], where: str, **about: Any) -> None:
        """Take a row with what is known about it, or note why it cannot be used."""
        if name in self.rows:
            self.problems.append(Problem("with a path that was there before", where, name))
            return
        found = []
        for finding, place in self.findings.items():
            meaning = NO_COLUMN if place is None else self._read(finding, fields[place])
            if meaning is None:
                detail = f"{finding} is '{fields[place or 0][:20]}'"
                self.problems.append(Problem("with an entry that is no label", where, detail))
                return
            found.append(meaning)
        self.rows[name] = about
        self.marks.append(found)

    def _read(self, finding: str, text: str) -> int | None:
        return self.columns[finding].read(text) if finding in self.columns else plain_mark(text)

    def column(self, kind: str) -> list[str] | None:
        """The patient, site or group of every row; nothing where no row has one."""
        found = [row.get(kind) for row in self.rows.values()]
        return [one or "" for one in found] if any(one is not None for one in found) else None

    def table(self, blank: Mapping[str, str], uncertain: Mapping[str, str]) -> Table:
        """What was taken, with blank and uncertain marks read as the policies say; a row without a split is in none."""
        marks = np.array(self.marks, dtype=np.int8).reshape(len(self.rows), len(self.findings))
        values, known = resolve(marks, tuple(self.findings), blank, uncertain)
        words = {f"{kind}s": found for kind in ("patient", "site", "group") if (found := self.column(kind)) is not None}
        columns: dict[str, Any] = {kind: np.array(found, dtype=np.str_) for kind, found in words.items()}
        columns |= {} if known.all() else {"known": known}
        doubts = (marks == UNCERTAIN).sum(axis=1).astype(np.uint8)
        names = np.array([*self.rows], dtype=np.str_)
        labels = Labels(values, tuple(self.findings), names, uncertain=doubts, **columns)
        paths = tuple(row.get("path", name) for name, row in self.rows.items())
        splits = [row.get("split") for row in self.rows.values()]
        split = np.array([-1 if one is None else one for one in splits], dtype=np.int8)
        return Table(labels, paths, split, tuple(self.problems), marks)


# ---------------------------------------------------------------------------------------------------- problems


def numbers(values: object, count: int) -> bool:
    """Whether this is a list of so many numbers."""
    return (
        isinstance(values, list | tuple)
        and len(values) == count
        and all(isinstance(one, int | float) for one in values)
    )


def describe_problems(name: str, problems: Sequence[Problem], total: int) -> str:
    """All problems in one line: counted by kind, the first few by name."""
    kinds = grouped((problem.what, problem) for problem in problems)
    listed = [f"{len(rows):,} {what} ({examples(rows)})" for what, rows in kinds.items()]
    text = f"{name}: of {total:,} images {'; '.join(listed)}"
    return "".join(letter if letter.isprintable() else " " for letter in text)  # a quoted field may hold line ends


def examples(problems: Sequence[Problem]) -> str:
    """The first three, and a sign that there are more."""
    some = [f"{problem.where}: {problem.detail}" if problem.detail else problem.where for problem in problems[:3]]
    return ", ".join([*some, "…"] if len(problems) > 3 else some)

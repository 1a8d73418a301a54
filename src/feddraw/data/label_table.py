"""The labels, paths and splits of a data set as one table, filled row by row, with the rows that
cannot be used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.data.dataset import SPLITS, Labels, Split
from feddraw.data.label_cells import (
    NO_COLUMN,
    UNCERTAIN,
    ColumnCells,
    label_in_numeric_cell,
    labels_from_cells,
)
from feddraw.text import grouped


@dataclass(frozen=True)
class RowProblem:
    """One row that cannot be used."""

    what: str  # "without a file": rows with the same trouble are counted together
    where: str
    detail: str = ""


@dataclass(frozen=True, eq=False)
class LabelTable:
    """The usable rows of a data set, and the others."""

    labels: Labels
    paths: tuple[str, ...]  # relative to the folder; empty where only labels are read
    split: NDArray[np.int8]  # (n,), which of SPLITS each row belongs to
    problems: tuple[RowProblem, ...] = ()
    marks: NDArray[np.int8] | None = (
        None  # (n, findings), the cells before blank and uncertain ones were decided
    )
    notes: tuple[str, ...] = ()  # what the user should know of the table

    def split_rows(self, split: Split) -> NDArray[np.intp]:
        return np.flatnonzero(self.split == SPLITS.index(split))

    def take(self, rows: NDArray[np.intp], problems: Sequence[RowProblem] = ()) -> LabelTable:
        """Some of the rows, with why the others are left out."""
        paths, told = tuple(self.paths[row] for row in rows), (*self.problems, *problems)
        marks = None if self.marks is None else self.marks[rows]
        return LabelTable(self.labels.take(rows), paths, self.split[rows], told, marks, self.notes)


@dataclass
class TableIntake:
    """The rows of a table as they are read, without those that cannot be used."""

    findings: Mapping[
        str, int | None
    ]  # name -> field of a row; none where the table lacks the column
    columns: Mapping[str, ColumnCells] = field(
        default_factory=dict
    )  # how each finding's cells are read
    marks: list[list[int]] = field(default_factory=list)
    rows: dict[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # by name: path, split, patient, site, group
    problems: list[RowProblem] = field(default_factory=list)

    def add(self, name: str, fields: Sequence[str], where: str, **about: Any) -> None:
        """Take a row with what is known about it, or note why it cannot be used."""
        if name in self.rows:
            self.problems.append(RowProblem("with a duplicate path", where, name))
            return
        found = []
        for finding, place in self.findings.items():
            read = self.columns[finding].read if finding in self.columns else label_in_numeric_cell
            meaning = NO_COLUMN if place is None else read(fields[place])
            if meaning is None:
                detail = f"{finding} is '{fields[place or 0][:20]}'"
                self.problems.append(RowProblem("with a value that is not a label", where, detail))
                return
            found.append(meaning)
        self.rows[name] = about
        self.marks.append(found)

    def column(self, kind: str) -> list[str] | None:
        """The patient, site or group of every row; nothing where no row has one."""
        found = [row.get(kind) for row in self.rows.values()]
        return [one or "" for one in found] if any(one is not None for one in found) else None

    def table(self, blank: Mapping[str, str], uncertain: Mapping[str, str]) -> LabelTable:
        """What was taken, with blank and uncertain marks read as the policies say; a row without a
        split is in none.
        """
        marks = np.array(self.marks, dtype=np.int8).reshape(len(self.rows), len(self.findings))
        values, known = labels_from_cells(marks, tuple(self.findings), blank, uncertain)
        words = {
            f"{kind}s": found
            for kind in ("patient", "site", "group")
            if (found := self.column(kind)) is not None
        }
        columns: dict[str, Any] = {
            kind: np.array(found, dtype=np.str_) for kind, found in words.items()
        }
        doubts = (marks == UNCERTAIN).sum(axis=1).astype(np.uint8)
        names = np.array([*self.rows], dtype=np.str_)
        labels = Labels(
            values, tuple(self.findings), names, uncertain=doubts, known=known, **columns
        )
        paths = tuple(row.get("path", name) for name, row in self.rows.items())
        splits = [row.get("split") for row in self.rows.values()]
        split = np.array([-1 if one is None else one for one in splits], dtype=np.int8)
        return LabelTable(labels, paths, split, tuple(self.problems), marks)


def describe_row_problems(name: str, problems: Sequence[RowProblem], total: int) -> str:
    """All problems in one line: counted by kind, the first few by name."""
    kinds = grouped((problem.what, problem) for problem in problems)
    listed = [f"{len(rows):,} {what} ({first_row_problems(rows)})" for what, rows in kinds.items()]
    text = f"{name}: of {total:,} images {'; '.join(listed)}"
    return "".join(
        letter if letter.isprintable() else " " for letter in text
    )  # a quoted field may hold line ends


def first_row_problems(problems: Sequence[RowProblem]) -> str:
    """The first three, and a sign that there are more."""
    some = [
        f"{problem.where}: {problem.detail}" if problem.detail else problem.where
        for problem in problems[:3]
    ]
    return ", ".join([*some, "…"] if len(problems) > 3 else some)

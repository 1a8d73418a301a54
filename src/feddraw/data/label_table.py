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
    ABSENT,
    NO_COLUMN,
    PRESENT,
    UNCERTAIN,
    ColumnCells,
    label_in_numeric_cell,
    labels_from_cells,
)
from feddraw.data.subgroups import SubgroupColumn, Subgrouping
from feddraw.text import grouped, join_names

DUPLICATE = "with a duplicate path"
NO_SITE = "(no site)"
UNKNOWN_FACTS = {None, "", NO_SITE}
CONTRADICTABLE = ("site", "patient", "group", "split")  # facts of an image beside its labels


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
    # (n, findings), the cells before blank and uncertain ones were decided
    marks: NDArray[np.int8] | None = None
    notes: tuple[str, ...] = ()  # what the user should know of the table

    def split_rows(self, split: Split) -> NDArray[np.intp]:
        return np.flatnonzero(self.split == SPLITS.index(split))

    def take(self, rows: NDArray[np.intp], problems: Sequence[RowProblem] = ()) -> LabelTable:
        """Some of the rows, with why the others are left out."""
        return LabelTable(
            labels=self.labels.take(rows),
            paths=tuple(self.paths[row] for row in rows),
            split=self.split[rows],
            problems=(*self.problems, *problems),
            marks=None if self.marks is None else self.marks[rows],
            notes=self.notes,
        )


@dataclass(frozen=True)
class LabelColumns:
    """Where the cell of each finding is in a table's rows, and how it is read."""

    places: Mapping[str, int | None]  # by finding; None where the table lacks the column
    # how each finding's cells are read; those without an entry hold numbers only
    readers: Mapping[str, ColumnCells] = field(default_factory=dict)

    def mark(self, finding: str, cells: Sequence[str]) -> int | None:
        """What a row says of a finding; None where its cell is no label."""
        place = self.places[finding]
        if place is None:
            return NO_COLUMN
        if finding in self.readers:
            return self.readers[finding].read(cells[place])
        return label_in_numeric_cell(cells[place])

    def problem(self, finding: str, cells: Sequence[str]) -> tuple[str, str]:
        """What a row is whose cell is no label of the finding, and the cell."""
        reader = self.readers.get(finding, ColumnCells(finding))
        cell = cells[self.places[finding] or 0][:20]
        return reader.problem, f"{reader.name} is '{cell}'"


@dataclass
class TableIntake:
    """The rows of one or several tables as they are read, without those that cannot be used."""

    findings: Sequence[str]
    subgroups: Sequence[SubgroupColumn] = ()
    marks: list[list[int]] = field(default_factory=list)
    # by name: path, split, patient, site, group, and the cells that tell subgroups
    rows: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    problems: list[RowProblem] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict)  # of each row's marks, by name

    def add(
        self, name: str, cells: Sequence[str], columns: LabelColumns, where: str, **facts: Any
    ) -> None:
        """Take a row with what is known about it, or note why it cannot be used; `columns` are
        those of the table that it comes from.
        """
        if name in self.rows:
            labels = self._contradicted_labels(name, cells, columns)
            self.problems.append(_duplicate(name, where, labels, self.rows[name], facts))
            return
        marks = []
        for finding in self.findings:
            mark = columns.mark(finding, cells)
            if mark is None:
                what, detail = columns.problem(finding, cells)
                self.problems.append(RowProblem(what, where, detail))
                return
            marks.append(mark)
        self._places[name] = len(self.marks)
        self.rows[name] = facts
        self.marks.append(marks)

    def _contradicted_labels(
        self, name: str, cells: Sequence[str], columns: LabelColumns
    ) -> list[str]:
        """The findings that one row of an image calls present and another absent."""
        first = zip(self.findings, self.marks[self._places[name]], strict=True)
        return [
            finding
            for finding, mark in first
            if {mark, columns.mark(finding, cells)} == {PRESENT, ABSENT}
        ]

    def column(self, kind: str) -> list[str] | None:
        """The patient, site or group of every row; nothing where no row has one."""
        values = [row.get(kind) for row in self.rows.values()]
        if all(value is None for value in values):
            return None
        return [value or "" for value in values]

    def table(self, blank: Mapping[str, str], uncertain: Mapping[str, str]) -> LabelTable:
        """What was taken, with blank and uncertain marks read as the policies say; a row without a
        split is in none.
        """
        findings = tuple(self.findings)
        marks = np.array(self.marks, dtype=np.int8).reshape(len(self.rows), len(findings))
        values, known = labels_from_cells(marks, findings, blank, uncertain)
        labels = Labels(
            values,
            findings,
            names=np.array(list(self.rows), dtype=np.str_),
            patients=self._text_column("patient"),
            sites=self._text_column("site"),
            uncertain=(marks == UNCERTAIN).sum(axis=1).astype(np.uint8),
            groups=self._text_column("group"),
            known=known,
            subgroups=self._subgroupings(),
        )
        paths = tuple(row.get("path", name) for name, row in self.rows.items())
        splits = [row.get("split") for row in self.rows.values()]
        split = np.array([-1 if number is None else number for number in splits], dtype=np.int8)
        return LabelTable(labels, paths, split, tuple(self.problems), marks)

    def _subgroupings(self) -> tuple[Subgrouping, ...]:
        cells = [row["subgroups"] for row in self.rows.values()] if self.subgroups else []
        return tuple(
            column.subgroups([of_row[place] for of_row in cells])
            for place, column in enumerate(self.subgroups)
        )

    def _text_column(self, kind: str) -> NDArray[np.str_] | None:
        values = self.column(kind)
        return None if values is None else np.array(values, dtype=np.str_)


def _duplicate(
    name: str,
    where: str,
    labels: Sequence[str],
    first: Mapping[str, Any],
    again: Mapping[str, Any],
) -> RowProblem:
    """What is wrong with a second row of an image: also what of it contradicts the first, labels
    or facts.
    """
    kinds = ["label"] if labels else []
    details = [name, join_names(labels)] if labels else [name]
    for kind in CONTRADICTABLE:
        before = first.get(kind)
        after = again.get(kind)
        if before != after and not {before, after} & UNKNOWN_FACTS:
            kinds.append(kind)
            details.append(f"{kind} {_fact_in_words(after)} and before {_fact_in_words(before)}")
    if not kinds:
        return RowProblem(DUPLICATE, where, name)
    what = f"{DUPLICATE} and a contradictory {join_names(kinds)}"
    return RowProblem(what, where, ", ".join(details))


def _fact_in_words(fact: str | int | None) -> str:
    """Splits are numbers; all other facts are text."""
    return SPLITS[fact] if isinstance(fact, int) else str(fact)


def describe_row_problems(name: str, problems: Sequence[RowProblem], total: int) -> str:
    """All problems in one line: counted by kind, the first few by name."""
    kinds = grouped((problem.what, problem) for problem in problems)
    listed = [f"{len(rows):,} {what} ({_first(rows)})" for what, rows in kinds.items()]
    text = f"{name}: of {total:,} {rows_or_images(problems)} {', '.join(listed)}"
    # a quoted cell may hold line ends
    return "".join(letter if letter.isprintable() else " " for letter in text)


def rows_or_images(problems: Sequence[RowProblem]) -> str:
    """What the problems count: rows, where an image has several of them, else images."""
    several_rows = any(problem.what.startswith(DUPLICATE) for problem in problems)
    return "rows" if several_rows else "images"


def _first(problems: Sequence[RowProblem]) -> str:
    """The first three, and a sign that there are more."""
    first_three = [
        f"{problem.where}: {problem.detail}" if problem.detail else problem.where
        for problem in problems[:3]
    ]
    return "; ".join([*first_three, "…"] if len(problems) > 3 else first_three)

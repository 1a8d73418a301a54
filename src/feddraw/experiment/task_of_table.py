"""What a user's table says of its images: columns of findings, or one column that names the class
of each image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from feddraw.data.class_column import why_no_classes
from feddraw.data.csv_sheet import CsvSheet
from feddraw.data.label_cells import ColumnCells
from feddraw.data.table_columns import (
    USUAL_COLUMN_NAMES,
    column_by_usual_name,
    path_column,
    read_columns,
)
from feddraw.errors import UserError
from feddraw.experiment.class_tables import LABEL_COLUMNS
from feddraw.text import join_names

# what columns of classes are often called, beside those that name findings
CLASS_COLUMNS = (*LABEL_COLUMNS, "dx", "grade", "stage", "target", "diagnosisname", "classname")
SEVERAL_FINDINGS = 2  # columns of 0 and 1 that make a table one of findings


def class_column_of(sheets: Sequence[CsvSheet], named: str) -> str:
    """The column that names the class of each image: the one that the user names, or the one that
    looks so where there are no findings; empty for findings.
    """
    if named:
        for sheet in sheets:
            sheet.column(named)
        return named
    candidates = class_candidates(sheets[0])
    findings = _finding_columns(sheets[0])
    if not candidates or len(findings) >= SEVERAL_FINDINGS:
        return ""
    usual = column_by_usual_name(list(candidates), CLASS_COLUMNS)
    chosen = list(candidates)[usual] if usual is not None else ""
    if not chosen and findings:
        return ""
    if not chosen and len(candidates) > 1:
        raise UserError(
            f"{sheets[0].path} has several columns that may name classes:"
            f" {join_names(list(candidates))}: say which with --class-column"
        )
    chosen = chosen or next(iter(candidates))
    return chosen if all(chosen in sheet.header for sheet in sheets) else ""


def class_candidates(sheet: CsvSheet) -> dict[str, ColumnCells]:
    """The columns that look like classes, by name, and are not known to be something else."""
    return {
        name: column
        for name, column in _columns_to_learn(sheet).items()
        if column.why_no_labels() and not why_no_classes(column)
    }


def _finding_columns(sheet: CsvSheet) -> list[str]:
    columns = _columns_to_learn(sheet)
    return [name for name, column in columns.items() if not column.why_no_labels()]


def _columns_to_learn(sheet: CsvSheet) -> Mapping[str, ColumnCells]:
    """Without the columns of paths, splits, sites, patients and groups."""
    facts = {path_column(sheet)}
    facts |= {column_by_usual_name(sheet.header, names) for names in USUAL_COLUMN_NAMES.values()}
    columns = read_columns(sheet)
    return {
        column.name: column
        for place, column in enumerate(columns)
        if place not in facts and column.name
    }

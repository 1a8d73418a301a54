"""A tidy table of results, a row for each scenario and method: the values that `feddraw stats`
compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from feddraw.analysis.paired_differences import against, mean_of_last
from feddraw.analysis.paired_repeats import PairedRows, RepeatRow, pair_rows
from feddraw.analysis.statistics import Table, tabulate, tabulate_repeats
from feddraw.data.csv_sheet import CsvSheet
from feddraw.errors import UserError

# Endings of columns that describe another column and are not compared themselves.
DESCRIBING_COLUMNS = ("_std", "_sd", "_sem", "_var", "_by_round", "_by_client")
# Columns that say which training a row is of: their numbers are names.
IDENTIFYING_COLUMNS = ("seed", "repeat", "fold", "round")


@dataclass(frozen=True)
class TidyTable:
    """A sheet, and which of its columns say what a row is about."""

    sheet: CsvSheet
    scenario: str  # names of columns
    method: str
    repeat: str  # empty: one row for each scenario and method

    def value_columns(self) -> list[str]:
        """All others but those that identify a training or describe another column."""
        names = (self.scenario, self.method, self.repeat, *IDENTIFYING_COLUMNS)
        columns = [
            column
            for column in self.sheet.header
            if column not in names and not column.endswith(DESCRIBING_COLUMNS)
        ]
        if not columns:
            raise UserError(
                f"{self.sheet.path} has no column of values; it has {', '.join(self.sheet.header)}"
            )
        return columns

    def table(self, column: str) -> Table:
        """One column of values by scenario and method, as the mean over the repeats that all
        methods have.
        """
        rows = self.paired_rows(column).rows
        try:
            if self.repeat:
                return tabulate_repeats(rows)
            return tabulate((scenario, method, value) for scenario, method, _, value in rows)
        except UserError as mistake:
            hint = ""
            if str(mistake).startswith("more than one"):
                hint = " (for repeats such as seeds: --over COLUMN)"
            raise UserError(f"{self.sheet.path}, {column}: {mistake}{hint}") from None

    def paired_rows(self, column: str) -> PairedRows:
        """Scenario, method, repeat and value of every line that counts; without repeats all do."""
        rows = self._rows(column, _number)
        if not self.repeat:
            return PairedRows(tuple(rows), ())
        try:
            return pair_rows(rows, self.repeat)
        except UserError as mistake:
            raise UserError(f"{self.sheet.path}, {column}: {mistake}") from None

    def last_round_differences(self, column: str, reference: str) -> dict[tuple[str, str], float]:
        """Each method minus the reference in the mean of the last five rounds, by scenario and
        method; empty unless the table has values by round for every row.
        """
        by_round = f"{column}_by_round"
        if by_round not in self.sheet.header:
            return {}
        rows = pair_rows(self._rows(by_round, _mean_of_last_rounds), self.repeat).rows
        if any(math.isnan(value) for _, _, _, value in rows):
            return {}
        return {
            (difference.scenario, difference.method): difference.mean
            for difference in against(rows, reference)
        }

    def _rows(self, column: str, read: Callable[[str, str], float]) -> list[RepeatRow]:
        """`read` makes the value of a field's text and of its name, for a message."""
        names = (self.scenario, self.method, self.repeat or self.scenario, column)
        places = [self.sheet.column(name) for name in names]
        rows: list[RepeatRow] = []
        for line, fields in self.sheet.rows():
            scenario, method, repeat, text = (fields[place].strip() for place in places)
            where = f"{self.sheet.path}, line {line}"
            if not scenario or not method:
                raise UserError(f"{where}: no {self.method if scenario else self.scenario}")
            value = read(text, f"{where}: {column} of {scenario} {method}")
            rows.append((scenario, method, repeat, value))
        return rows


def _number(text: str, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        content = f"{text[:40]!r}, not a number" if text else "blank"
        raise UserError(
            f"{' '.join(name.split())[:200]} is {content}: correct it, or choose other columns with"
            " --value"
        )
    return number


def _mean_of_last_rounds(text: str, name: str) -> float:
    """Of numbers by round, separated by spaces."""
    return mean_of_last(_number(word, name) for word in text.split())

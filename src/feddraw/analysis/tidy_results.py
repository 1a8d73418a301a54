"""A tidy table of results, a row for each scenario and method: the values that `feddraw stats`
compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from feddraw.analysis.paired_differences import against, mean_of_last
from feddraw.analysis.statistics import RepeatRow, Table, tabulate, tabulate_repeats
from feddraw.data.csv_sheet import CsvSheet
from feddraw.errors import UserError

DESCRIBING_COLUMNS = (
    "_std",
    "_sd",
    "_sem",
    "_var",
    "_by_round",
    "_by_client",
)  # endings of columns about another


def tidy_value_columns(sheet: CsvSheet, names: set[str]) -> list[str]:
    columns = [
        name for name in sheet.header if name not in names and not name.endswith(DESCRIBING_COLUMNS)
    ]
    if not columns:
        raise UserError(f"{sheet.path} has no column of values; it has {', '.join(sheet.header)}")
    return columns


def read_tidy_table(sheet: CsvSheet, scenario: str, method: str, value: str, over: str) -> Table:
    """One column of values as a table; a field that is no number is named with its line."""
    rows = read_tidy_rows(sheet, scenario, method, value, over)
    try:
        if over:
            return tabulate_repeats(rows)
        return tabulate((where, who, number) for where, who, _, number in rows)
    except UserError as mistake:
        hint = (
            " (for repeats such as seeds: --over COLUMN)"
            if str(mistake).startswith("more than one")
            else ""
        )
        raise UserError(f"{sheet.path}, {value}: {mistake}{hint}") from None


def _tidy_value(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        have = f"{text[:40]!r}, not a number" if text else "blank"
        raise UserError(
            f"{' '.join(what.split())[:200]} is {have}: correct it, or choose other columns with"
            " --value"
        )
    return number


def read_tidy_rows(
    sheet: CsvSheet,
    scenario: str,
    method: str,
    value: str,
    over: str,
    read: Callable[[str, str], float] = _tidy_value,
) -> list[RepeatRow]:
    """Scenario, method, repeat and value of every line; `read` makes the value of a field's text
    and its name.
    """
    places = [sheet.column(name) for name in (scenario, method, over or scenario, value)]
    rows: list[RepeatRow] = []
    for line, fields in sheet.rows():
        where, who, repeat, text = (fields[place].strip() for place in places)
        if not where or not who:
            raise UserError(f"{sheet.path}, line {line}: no {method if where else scenario}")
        rows.append(
            (where, who, repeat, read(text, f"{sheet.path}, line {line}: {value} of {where} {who}"))
        )
    return rows


def tidy_last_round_differences(
    sheet: CsvSheet, names: tuple[str, str, str], column: str, reference: str
) -> dict[tuple[str, str], float]:
    """The same differences of the means of the last five rounds, where the table has values by
    round for every row.
    """
    by_round = f"{column}_by_round"
    if by_round not in sheet.header:
        return {}

    def read(text: str, what: str) -> float:
        return mean_of_last(_tidy_value(word, what) for word in text.split())

    scenario, method, over = names
    rows = read_tidy_rows(sheet, scenario, method, by_round, over, read)
    if any(math.isnan(value) for *_, value in rows):
        return {}
    return {(one.scenario, one.method): one.mean for one in against(rows, reference)}

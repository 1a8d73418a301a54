"""Text of a CSV file: no name in a cell becomes a spreadsheet's formula, and our own readers get it
back as it was.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

_FORMULA = re.compile(r"'*[=+\-@\t\r]")  # what makes a spreadsheet calculate
_ESCAPED_FORMULA = re.compile(r"'+[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")


def csv_text(rows: Sequence[Sequence[Any]]) -> str:
    """Lines of a CSV.

    Words that a spreadsheet takes for a formula get an apostrophe; `from_csv_cell` removes it.
    """
    text = io.StringIO()
    usual = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
    quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        # a carriage return is a new line for those who read a table, but not for the writer
        breaks = any(isinstance(value, str) and "\r" in value for value in row)
        writer = quoted if breaks else usual
        writer.writerow([to_csv_cell(value) for value in row])
    return text.getvalue()


def to_csv_cell(value: Any) -> Any:
    """The value; a text that a spreadsheet would calculate gets an apostrophe."""
    formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if formula else value


def from_csv_cell(value: str) -> str:
    """What `to_csv_cell` was given."""
    if _ESCAPED_FORMULA.match(value) and not _NUMBER.fullmatch(value[1:]):
        return value[1:]
    return value

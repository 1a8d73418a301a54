"""A CSV file read line by line, also from a .gz, with limits on its length: label tables may come
from a stranger.
"""

from __future__ import annotations

import csv
import gzip
import re
import unicodedata
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

from feddraw.errors import UserError
from feddraw.system.csv_cells import from_csv_cell

MAX_TEXT = 2**30  # characters of a sheet, unpacked
MAX_LINE = 2**20  # characters of a line
MAX_LINES = 2**20  # of a sheet, blank ones too: five times the largest set of radiographs
MAX_COLUMNS = 2**10
# A table shrinks to a tenth, a bomb to a thousandth.
MAX_GZIP_RATIO = 100  # characters for a byte of a .gz
ALWAYS_UNPACKED = 2**20  # characters of a .gz that are read whatever its size
SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")
# Excel's own first line, which says what separates cells; the header comes after it
SEPARATOR_LINE = re.compile(r'"?sep=([,;\t])"?[,;\t]*\s*')


@dataclass(frozen=True)
class CsvSheet:
    """A CSV file, also .gz, read line by line."""

    path: Path
    header: tuple[str, ...]
    delimiter: str
    lines_before: int = 0  # the header

    @classmethod
    def of(cls, path: Path, columns: int = 2) -> CsvSheet:
        """The file with the separator that its first line names or has most of; with at least so
        many columns.
        """
        with _open(path) as file:
            lines = _limited_lines(file, path)
            first = next(lines, "")
            if not first:
                raise UserError(f"{path} is empty")
            separator_line = SEPARATOR_LINE.fullmatch(first)
            if separator_line:
                delimiter = separator_line[1]
                first = next(lines, "")
            else:
                delimiter = max(",;\t", key=first.count)
            try:  # a quoted name may have several lines
                names = next(csv.reader(chain([first], lines), delimiter=delimiter), [])
            except csv.Error as error:
                raise UserError(f"cannot read {path}: {error}") from error
        header = tuple(from_csv_cell(_column_name(name)) for name in names)
        if sum(map(bool, header)) < columns:
            raise UserError(
                f"{path} is not a table: its first line must hold column names, separated by"
                " commas, semicolons or tabs"
            )
        if len(header) > MAX_COLUMNS:
            raise UserError(f"{path} is not a table of labels: it has {len(header):,} columns")
        return cls(path, header, delimiter, lines_before=1 if separator_line else 0)

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and cells of each row with a cell that is not blank (spreadsheets write rows
        of separators below a table); short rows are filled up.
        """
        try:
            with _open(self.path) as file:
                lines = _limited_lines(file, self.path)
                for _ in range(self.lines_before):
                    next(lines)
                reader = csv.reader(lines, delimiter=self.delimiter)
                next(reader)
                for cells in reader:
                    if any(map(str.strip, cells)):
                        missing = [""] * (len(self.header) - len(cells))
                        line = self.lines_before + reader.line_num
                        yield line, [from_csv_cell(cell) for cell in cells + missing]
        except (csv.Error, EOFError, OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {self.path}: {error}") from error

    def column(self, name: str) -> int:
        """The place of a column, which must be there."""
        if name not in self.header:
            raise UserError(f"{self.path} has no column '{name}'; it has {', '.join(self.header)}")
        return self.header.index(name)

    def column_if_there(self, *names: str) -> int | None:
        """The place of the first column with one of these names."""
        return next((place for place, title in enumerate(self.header) if title in names), None)


def _column_name(text: str) -> str:
    """In one line, and in one spelling: some systems write ö as o and two dots."""
    return unicodedata.normalize("NFC", re.sub(r"\s*[\r\n]+\s*", " ", text.strip()))


def _open(path: Path) -> IO[str]:
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


def _limited_lines(file: IO[str], path: Path) -> Iterator[str]:
    """The lines of a file, as long as they look like a table's: a small .gz can unpack to
    anything.
    """
    characters = 0
    lines = 0
    try:
        most = MAX_TEXT
        if path.suffix == ".gz":
            most = min(most, max(ALWAYS_UNPACKED, MAX_GZIP_RATIO * path.stat().st_size))
        while line := file.readline(MAX_LINE):
            characters += len(line)
            lines += 1
            if len(line) == MAX_LINE or characters > most or lines > MAX_LINES:
                raise UserError(f"{path} is not a table: a line or the whole file is too long")
            yield line
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} cannot be read as UTF-8 text: save it as CSV UTF-8 (in Excel: Save As, CSV"
            " UTF-8)"
        ) from error
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {error}") from error

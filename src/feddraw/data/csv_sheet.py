"""A CSV file read line by line, also from a .gz, with limits on its length: label tables may come
from a stranger.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class CsvSheet:
    """A CSV file, also .gz, read line by line."""

    path: Path
    header: tuple[str, ...]
    delimiter: str

    @classmethod
    def of(cls, path: Path, columns: int = 2) -> CsvSheet:
        """The file with the separator that its first line has most of; with at least so many
        columns.
        """
        with _open(path) as file:
            first = next(_limited_lines(file, path), "")
        delimiter = max(",;\t", key=first.count)
        header = next(csv.reader([first], delimiter=delimiter), [])
        if len(header) < columns:
            raise UserError(
                f"{path} is not a table: its first line must hold column names, separated by commas"
            )
        if len(header) > MAX_COLUMNS:
            raise UserError(f"{path} is not a table of labels: it has {len(header):,} columns")
        return cls(path, tuple(from_csv_cell(name.strip()) for name in header), delimiter)

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and cells of each row that is not blank; short rows are filled up."""
        try:
            with _open(self.path) as file:
                reader = csv.reader(_limited_lines(file, self.path), delimiter=self.delimiter)
                next(reader)
                for cells in reader:
                    if cells:
                        missing = [""] * (len(self.header) - len(cells))
                        yield reader.line_num, [from_csv_cell(cell) for cell in cells + missing]
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
    except (EOFError, OSError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(
            f"{path} cannot be read as UTF-8 text, save it as CSV in UTF-8: {error}"
        ) from error

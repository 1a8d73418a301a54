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

MAX_CSV_TEXT = 2**30  # characters of a sheet, unpacked
MAX_CSV_LINE = 2**20
SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")
MAX_CSV_LINES = 2**22  # of a sheet, blank ones too: twenty times the largest set of radiographs
MAX_GZIP_RATIO = (
    100  # characters for a byte of a .gz: tables shrink to a tenth, a bomb to a thousandth
)


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
        with open_csv(path) as file:
            first = next(limited_csv_lines(file, path), "")
        delimiter = max(",;\t", key=first.count)
        header = next(csv.reader([first], delimiter=delimiter), [])
        if len(header) < columns:
            raise UserError(
                f"{path} is not a table: its first line must hold column names, separated by commas"
            )
        return cls(path, tuple(from_csv_cell(name.strip()) for name in header), delimiter)

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and fields of each row that is not blank; short rows are filled up."""
        try:
            with open_csv(self.path) as file:
                reader = csv.reader(limited_csv_lines(file, self.path), delimiter=self.delimiter)
                next(reader)
                for fields in reader:
                    if fields:
                        filled = fields + [""] * (len(self.header) - len(fields))
                        yield reader.line_num, list(map(from_csv_cell, filled))
        except (csv.Error, EOFError, OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {self.path}: {error}") from error

    def column(self, name: str) -> int:
        if name not in self.header:
            raise UserError(f"{self.path} has no column '{name}'; it has {', '.join(self.header)}")
        return self.header.index(name)

    def column_if_there(self, *names: str) -> int | None:
        """Where the first column with one of these names is."""
        return next((place for place, title in enumerate(self.header) if title in names), None)


def open_csv(path: Path) -> IO[str]:
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


def limited_csv_lines(file: IO[str], path: Path) -> Iterator[str]:
    """The lines of a file, as long as they look like a table's: a small .gz can unpack to
    anything.
    """
    total = lines = 0
    try:
        most = (
            max(2**26, MAX_GZIP_RATIO * path.stat().st_size)
            if path.suffix == ".gz"
            else MAX_CSV_TEXT
        )
        while line := file.readline(MAX_CSV_LINE):
            total, lines = total + len(line), lines + 1
            if (
                len(line) == MAX_CSV_LINE
                or total > min(most, MAX_CSV_TEXT)
                or lines > MAX_CSV_LINES
            ):
                raise UserError(f"{path} is not a table: a line or the whole file is too long")
            yield line
    except (EOFError, OSError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(
            f"{path} cannot be read as UTF-8 text, save it as CSV in UTF-8: {error}"
        ) from error

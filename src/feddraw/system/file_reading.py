"""Reading files that may come from a stranger: text, TOML, JSON, logs and tables.

Each has a limit on its bytes, and on the values in it: a value takes ten times the memory of the
text that says it, so values are counted before or while they are made.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import tomllib
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from feddraw.errors import UserError
from feddraw.system.csv_cells import from_csv_cell

MAX_SETTINGS = 1 << 20  # bytes of a file of settings
MAX_JSON = 1 << 26  # bytes of a document
MAX_LOG = 1 << 28  # bytes of a log or table
MAX_VALUES = 1 << 23  # numbers, words, lists and so on in a document, log or table
ROW_VALUES = 4  # what a row of a table takes besides its cells, in cells
MAX_TOML_DEPTH = 30  # of tables within tables
NAME_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
LONG_TOML_NAME = re.compile(rf"(?<![\w-])(?:{NAME_PART}){{{MAX_TOML_DEPTH}}}")  # a.b.c and so on


def read_text(path: Path, limit: int) -> str:
    """A file of text that is not larger than it should be; what is no regular file is not
    opened.
    """
    try:
        if not path.is_file():
            why = "it is not a file" if path.exists() else "No such file or directory"
            raise UserError(f"cannot read {path}: {why}")
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        raise UserError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from None
    if len(content) > limit:
        raise UserError(f"{path} is larger than {limit >> 20} MB: not a file of this kind")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8: {error}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """A small TOML file, or the one line that says why not."""
    try:
        return parse_toml(read_text(path, MAX_SETTINGS))
    except ValueError as error:  # wrong TOML, or a number with more digits than Python reads
        raise UserError(f"{path} is not valid TOML: {error}") from None
    except RecursionError:
        raise UserError(f"{path} is not valid TOML: it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """A TOML document. RecursionError if it is nested too deeply; ValueError if it is none, or has
    an integer of more than 64 bits: those written as 0xfff… may be so long that Python does not
    print them.
    """
    # long names are not parsed: the time and memory for them grow with the square of their parts
    if LONG_TOML_NAME.search(text):
        raise RecursionError
    table = tomllib.loads(text)
    for depth, values in enumerate(_levels(table), start=1):
        if depth > MAX_TOML_DEPTH:
            raise RecursionError
        if any(type(value) is int and not -(2**63) <= value < 2**63 for value in values):
            raise ValueError("an integer of more than 64 bits")
    return table


def _levels(table: dict[str, Any]) -> Iterator[list[Any]]:
    """The values of a document, then those in its tables and lists, and so on; dotted names nest
    without a bracket.
    """
    level: list[Any] = list(table.values())
    while level:
        yield level
        nested = [value for value in level if isinstance(value, dict | list)]
        level = [
            value
            for outer in nested
            for value in (outer.values() if isinstance(outer, dict) else outer)
        ]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or the one line that says why not."""
    text = read_text(path, MAX_JSON)
    _refuse_too_many(_json_values_at_most(text), path)
    document = parse_json(text)
    if not isinstance(document, dict) or (SURROGATE.search(text) and not _is_whole_text(document)):
        raise UserError(f"{path} is not valid JSON with a name for every value")
    return document


def _is_whole_text(document: Any) -> bool:
    """Whether all of its characters exist: half of a pair cannot be printed or written."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_json(text: str | bytes) -> Any:
    """What the text says; None if it is not JSON, or nested too deeply, or has numbers that are too
    long or too many values.
    """
    if _json_values_at_most(text) > MAX_VALUES:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _json_values_at_most(text: str | bytes) -> int:
    """No fewer than the values of a JSON text: each but the first of a line stands behind one of
    these signs, some of which may be in strings.
    """
    if isinstance(text, bytes):
        return 1 + sum(text.count(sign) for sign in (b",", b"[", b"{", b":"))
    return 1 + sum(text.count(sign) for sign in ",[{:")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The lines of a log up to the first that is torn."""
    if not path.is_file():
        return []
    return parse_jsonl(read_text(path, MAX_LOG), path)


def parse_jsonl(text: str, path: Path) -> list[dict[str, Any]]:
    """The same of a part of the log at this path."""
    _refuse_too_many(_json_values_at_most(text), path)
    entries = (parse_json(line) for line in io.StringIO(text, newline="\n"))
    return list(takewhile(lambda entry: isinstance(entry, dict), entries))


def read_csv(path: Path) -> list[dict[str, str]]:
    """The lines of a ledger as dicts; a torn last line is passed over, as is any with another
    number of cells than the first.
    """
    if not path.is_file():
        return []
    text = read_text(path, MAX_LOG)
    return list(parse_csv(text[: text.rfind("\n") + 1], [], path))


def parse_csv(text: str, header: list[str], path: Path) -> Iterator[dict[str, str]]:
    """The same of a part of the table at this path; the first line fills an empty `header`."""
    values = 0
    try:
        for line in filter(None, csv.reader(io.StringIO(text, newline=""))):
            cells = [from_csv_cell(cell) for cell in line]
            if not header:
                header += cells
                continue
            values += ROW_VALUES + len(cells)
            _refuse_too_many(values, path)
            if len(cells) == len(header):
                yield dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise UserError(f"{path} is not a table: {error}") from None


def _refuse_too_many(values: int, path: Path) -> None:
    if values > MAX_VALUES:
        raise UserError(f"{path} holds more than {MAX_VALUES:,} values: not a file of this kind")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def number_or_nan(value: Any) -> float:
    """A number that `json_values` wrote: null is undefined, and infinity is a word."""
    return math.nan if value is None else float(value)


def expanded_path(path: str | Path) -> Path:
    """The path with the home folder for a leading ~."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(
            f"no home folder {Path(path).parts[0]} on this machine: give the whole path"
        ) from None

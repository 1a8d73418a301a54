"""Reading files that may come from a stranger: text, TOML, JSON, logs and tables, each with a limit
on its size.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import tomllib
from itertools import takewhile
from pathlib import Path
from typing import Any

from feddraw.errors import UserError
from feddraw.system.csv_cells import from_csv_cell

MAX_SETTINGS, MAX_JSON, MAX_LOG = 1 << 20, 1 << 26, 1 << 28  # bytes of a file that is read whole
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
        text = read_text(path, MAX_SETTINGS)
        # long names are not parsed: the time and memory for them grow with the square of their
        # parts
        if (
            LONG_TOML_NAME.search(text)
            or _toml_depth(table := tomllib.loads(text)) > MAX_TOML_DEPTH
        ):
            raise RecursionError
        return table
    except ValueError as error:  # wrong TOML, or a number with more digits than Python reads
        raise UserError(f"{path} is not valid TOML: {error}") from None
    except RecursionError:
        raise UserError(f"{path} is not valid TOML: it is nested too deeply") from None


def _toml_depth(table: Any) -> int:
    """How deeply tables and lists are nested; dotted names nest without a bracket."""
    depth, level = 0, [table]
    while level := [
        inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)
    ]:
        depth += 1
        level = [inner for inner in level if isinstance(inner, dict | list)]
    return depth


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or the one line that says why not."""
    text = read_text(path, MAX_JSON)
    found = parse_json(text)
    if not isinstance(found, dict) or (SURROGATE.search(text) and not _is_whole_text(found)):
        raise UserError(f"{path} is not valid JSON with a name for every value")
    return found


def _is_whole_text(found: Any) -> bool:
    """Whether all of its characters exist: half of a pair cannot be printed or written."""
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_json(text: str | bytes) -> Any:
    """What the text says; None if it is not JSON, or nested too deeply, or has numbers that are too
    long.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The lines of a log up to the first that is torn."""
    lines = read_text(path, MAX_LOG).split("\n") if path.is_file() else []
    entries = (parse_json(line) for line in lines)
    return list(takewhile(lambda entry: isinstance(entry, dict), entries))


def read_csv(path: Path) -> list[dict[str, str]]:
    """The lines of a ledger as dicts; a torn last line is passed over."""
    if not path.is_file():
        return []
    text = read_text(path, MAX_LOG)
    whole = text[: text.rfind("\n") + 1]
    try:
        rows = list(csv.DictReader(io.StringIO(whole, newline="")))
    except csv.Error as error:
        raise UserError(f"{path} is not a table: {error}") from None
    whole_rows = [row for row in rows if None not in row and None not in row.values()]
    return [
        {from_csv_cell(name): from_csv_cell(value) for name, value in row.items()}
        for row in whole_rows
    ]


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

"""Names are only names: what a client or a finding is called, as text for a terminal, a page, a file, a cell.

Names come from tables, run folders and other machines, and can hold anything. Each place where they are shown has
characters that do something there; here they become characters that only say something.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from typing import Any

# What moves a cursor, colours a terminal, turns the reading direction round, or is no character at all.
_ACTIVE = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff"
_CONTROL = re.compile(f"[{_ACTIVE}]")
_CONTROL_OR_BREAK = re.compile(f"[{_ACTIVE}\t\n]")
_LONGEST = 60  # characters of a file's name that are readable; systems allow 255 bytes for all of it
_FORMULA = re.compile(r"'*[=+\-@\t\r]")  # what makes a spreadsheet calculate
_ESCAPED_FORMULA = re.compile(r"'+[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")


def text(words: str) -> str:
    """For a terminal or a page: control characters are shown by their number; lines stay lines."""
    return _CONTROL.sub(_shown, words)


def line(words: str) -> str:
    """The same in one line: a name cannot begin a new one."""
    return _CONTROL_OR_BREAK.sub(_shown, words)


def _shown(found: re.Match[str]) -> str:
    code = ord(found.group())
    return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def slug(name: str) -> str:
    """For files and anchors, in lower-case ASCII. A name that is long or would lose its letters gets a digest."""
    plain = re.sub(r"[^a-z0-9.+]+", "-", name.lower()).strip("-.")
    if plain and name.isascii() and name.isprintable() and len(plain) <= _LONGEST:
        return plain
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:6]
    return f"{plain[:_LONGEST]}-{digest}".strip("-.")


def distinct(slugs: Iterable[str]) -> Iterator[str]:
    """The same, with a number behind each that was there before."""
    seen: set[str] = set()
    for one in slugs:
        numbered = chain([one], (f"{one}-{number}" for number in count(2)))
        found = next(candidate for candidate in numbered if candidate not in seen)
        seen.add(found)
        yield found


def folder(name: str) -> str:
    """For a folder or a file that a user will type: letters of any script, nothing that a path or a shell reads."""
    return re.sub(r"[^\w.=,+-]+", "-", name)[:_LONGEST] or "x"


# ---------------------------------------------------------------------------------------------------- tables


def csv_text(rows: Sequence[Sequence[Any]]) -> str:
    """Lines of a CSV. Words that a spreadsheet would take for a formula get an apostrophe; `from_cell` removes it."""
    written = io.StringIO()
    usual, quoted = (
        csv.writer(written, lineterminator="\n", quoting=how) for how in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
    )
    for row in rows:  # a carriage return is a new line for those who read a table, but not for the writer
        writer = quoted if any(isinstance(value, str) and "\r" in value for value in row) else usual
        writer.writerow([to_cell(value) for value in row])
    return written.getvalue()


def to_cell(value: Any) -> Any:
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def from_cell(value: str) -> str:
    """What `to_cell` was given."""
    return value[1:] if _ESCAPED_FORMULA.match(value) and not _NUMBER.fullmatch(value[1:]) else value


def join_names(names: Sequence[str]) -> str:
    """a, b and c; long lists are cut."""
    if len(names) > 8:
        names = [*names[:6], f"{len(names) - 6} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)

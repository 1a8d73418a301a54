"""Names are only names: what a client or a finding is called, as text for a terminal, a page, a
file.

Names come from tables, run folders and other machines, and can hold anything. Each place where they
are shown has characters that do something there; here they become characters that only say
something. For the cells of a table see `system.csv_cells`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from typing import Any

# What moves a cursor, colours a terminal, turns the reading direction round, or is no character at
# all.
_ACTIVE = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff"
)
_CONTROL = re.compile(f"[{_ACTIVE}]")
_CONTROL_OR_BREAK = re.compile(f"[{_ACTIVE}\t\n]")
_LONGEST_NAME = (
    60  # characters of a file's name that are readable; systems allow 255 bytes for all of it
)


def safe_text(words: str) -> str:
    """For a terminal or a page: control characters are shown by their number; lines stay lines."""
    return _CONTROL.sub(_escaped_character, words)


def safe_line(words: str) -> str:
    """The same in one line: a name cannot begin a new one."""
    return _CONTROL_OR_BREAK.sub(_escaped_character, words)


def _escaped_character(found: re.Match[str]) -> str:
    code = ord(found.group())
    return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code) or (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    )


def slug(name: str) -> str:
    """For files and anchors, in lower-case ASCII.

    A name that is long or would lose its letters gets a digest.
    """
    plain = re.sub(r"[^a-z0-9.+]+", "-", name.lower()).strip("-.")
    if plain and name.isascii() and name.isprintable() and len(plain) <= _LONGEST_NAME:
        return plain
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:6]
    return f"{plain[:_LONGEST_NAME]}-{digest}".strip("-.")


def distinct_slugs(slugs: Iterable[str]) -> Iterator[str]:
    """The same, with a number behind each that was there before."""
    seen: set[str] = set()
    for one in slugs:
        numbered = chain([one], (f"{one}-{number}" for number in count(2)))
        found = next(candidate for candidate in numbered if candidate not in seen)
        seen.add(found)
        yield found


def folder_name(name: str) -> str:
    """For a folder or a file that a user will type: letters of any script, nothing that a path or a
    shell reads.
    """
    return re.sub(r"[^\w.=,+-]+", "-", name)[:_LONGEST_NAME] or "x"


def join_names(names: Sequence[str]) -> str:
    """a, b and c; long lists are cut."""
    if len(names) > 8:
        names = [*names[:6], f"{len(names) - 6} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def one_line(text: Any, most: int = 80) -> str:
    """Text from another machine, short and without control characters, for a log or a table."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)[:most]).strip()

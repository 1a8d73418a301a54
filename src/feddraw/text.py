"""Text: names as safe text for a terminal, a page or a file, lists in words, "A=1, B=2" read, and
things grouped by a name.

Names of clients and findings come from tables, run folders and other machines, and can hold
anything. Each place where they are shown has characters that do something there; here they become
characters that only say something. For the cells of a table see `system.csv_cells`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

from feddraw.errors import UserError

Key = TypeVar("Key")
Value = TypeVar("Value")

# What moves a cursor, colours a terminal, turns the reading direction round, or is no character.
_ACTIVE = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff"
)
_CONTROL = re.compile(f"[{_ACTIVE}]")
_CONTROL_OR_BREAK = re.compile(f"[{_ACTIVE}\t\n]")
_SHORT_ESCAPES = {9: "\\t", 10: "\\n", 13: "\\r"}
_LONGEST_NAME = 60  # characters that are readable; file systems allow 255 bytes


def safe_text(words: str) -> str:
    """For a terminal or a page: control characters are shown by their number; lines stay lines."""
    return _CONTROL.sub(_escaped_character, words)


def safe_line(words: str) -> str:
    """The same in one line: a name cannot begin a new one."""
    return _CONTROL_OR_BREAK.sub(_escaped_character, words)


def _escaped_character(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[code]
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


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
    """The slugs in their order, with a number behind each that was there before."""
    taken: set[str] = set()
    for base in slugs:
        distinct = base
        numbers = count(2)
        while distinct in taken:
            distinct = f"{base}-{next(numbers)}"
        taken.add(distinct)
        yield distinct


def plain_name(name: str) -> str:
    """What spellings of a column's name have in common: lower case, without blanks, dashes and
    underscores.
    """
    return re.sub(r"[ _-]", "", name.lower())


def folder_name(name: str) -> str:
    """For a folder or a file that a user will type: letters of any script, nothing that a path or a
    shell reads.
    """
    return re.sub(r"[^\w.=,+-]+", "-", name)[:_LONGEST_NAME] or "x"


def distinct_ends(paths: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The ends of paths, all as long as it takes to tell them apart: by path, given with its parts.

    {"/a/x/t": ("/", "a", "x", "t"), "/a/y/t": ("/", "a", "y", "t")} gives "x/t" and "y/t". Where
    two have the same parts, each path stays as it is.
    """
    for depth in range(1, max(map(len, paths.values())) + 1):
        ends = {path: "/".join(parts[-depth:]) for path, parts in paths.items()}
        if len(set(ends.values())) == len(ends):
            return ends
    return {path: path for path in paths}


def join_names(names: Sequence[str], most: int = 8) -> str:
    """a, b and c; of more than `most`, all but two of so many and the number of the others."""
    if len(names) > most:
        shown = most - 2
        names = [*names[:shown], f"{len(names) - shown} more"]
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def with_article(noun: str) -> str:
    """a str, an int."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def one_line(text: Any, most: int = 80) -> str:
    """Text from another machine, short and without control characters, for a log or a table."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)[:most]).strip()


def parse_pairs(
    text: str, read: Callable[[str], Value], *, setting: str, example: str
) -> dict[str, Value]:
    """What "North=0.3, South=0.2" says, as a dictionary in the order of the text.

    `read` makes a value of what stands behind "=", and raises ValueError where that is none. Text
    that cannot be read, and a name that comes twice, are refused with a UserError that names the
    `setting` and shows the `example`.
    """
    pairs: dict[str, Value] = {}
    for item in filter(str.strip, text.split(",")):
        name, _, written = item.rpartition("=")
        name = name.strip()
        try:
            if not name or name in pairs:
                raise ValueError(name)
            pairs[name] = read(written.strip())
        except ValueError:
            raise UserError(f"{setting} must read like {example}, not '{text}'") from None
    return pairs


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key, both in the order in which they are met."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def bytes_in_words(count: float) -> str:
    """In gigabytes, or megabytes where there is less than one."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"

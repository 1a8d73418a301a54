"""Markdown that no name can break: text that stays text, and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from feddraw.text import safe_line

_MARKUP = re.compile(r"([\\`*_{}\[\]|#~$])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# what begins a list at the start of a line, or makes a heading of the line above
_AT_LINE_START = re.compile(r"^(\d*)([-+=.)])(?=\s|\2*$)")


def escape_markdown(text: str) -> str:
    """Text as one line of Markdown that shows the same characters: names are names, whatever they
    look like.
    """
    line = safe_line(" ".join(text.split()))
    escaped = _AT_LINE_START.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", line))
    return "".join(_HTML.get(character, character) for character in escaped)


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False
) -> list[str]:
    """The lines of a table.

    Cells are Markdown: what is only text goes through `escape_markdown` first. With `numbers` all
    columns but the first are aligned to the right.
    """
    other_columns = "---:|" if numbers else "---|"
    rule = "|---|" + other_columns * (len(header) - 1)
    return [_row(header), rule, *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

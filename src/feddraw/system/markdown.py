"""Markdown that no name can break: text that stays text, and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from feddraw.text import safe_line

_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#~$])")


def escape_markdown(text: str) -> str:
    """Text as one line of Markdown that shows the same characters: names are names, whatever they
    look like.
    """
    line = safe_line(" ".join(text.split()))
    escaped = _MARKUP.sub(r"\\\1", line)
    return escaped.replace(r"\<", "&lt;").replace(r"\>", "&gt;")


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

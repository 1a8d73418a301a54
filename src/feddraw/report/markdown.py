"""A report as Markdown, with its figures beside it: for repositories, and for readers without a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from feddraw import naming
from feddraw.report import blocks
from feddraw.report.blocks import Block, Cell, Document

_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#~$])")


def render(document: Document, folder: str) -> str:
    """The whole file; figures are looked for in the folder."""
    lines = [f"# {escape(document.title)}", "", *_blocks(document.blocks, folder)]
    return "\n".join(lines).rstrip() + "\n"


def escape(text: str) -> str:
    """Names are names, whatever they look like."""
    words = naming.safe_line(" ".join(text.split()))
    return _MARKUP.sub(r"\\\1", words).replace(r"\<", "&lt;").replace(r"\>", "&gt;")


def _blocks(several: Sequence[Block], folder: str) -> Iterator[str]:
    for block in several:
        match block:
            case blocks.Heading(text, level):
                yield f"{'#' * level} {escape(text)}"
            case blocks.Text(text):
                yield escape(text)
            case blocks.Bullets(items):
                yield from (f"- {escape(item)}" for item in items)
            case blocks.Code(text):
                yield f"```\n{naming.safe_text(text).replace('```', '')}\n```"
            case blocks.Only() | blocks.Columns() | blocks.Fold():
                yield from _blocks(block.blocks, folder)
                continue
            case blocks.Gallery(pictures, note):
                yield from (f"![{escape(one.words)}]({folder}/{one.name}.svg)" for one in pictures)
                if note:
                    yield f"\n{escape(note)}"
            case blocks.Table():
                yield from _table(block)
        yield ""


def _table(table: blocks.Table) -> Iterator[str]:
    yield f"**{escape(table.caption)}**"
    yield ""
    names = [f"{name} " for name, width in table.spans for _ in range(width)] or [""] * (len(table.header) - 1)
    yield f"| {' | '.join(escape(above + name) for above, name in zip(['', *names], table.header, strict=True))} |"
    yield f"|---|{'---:|' * (len(table.header) - 1)}"
    for row in table.rows:
        yield f"| {' | '.join(map(_cell, row))} |"
    for name, *cells in table.references:
        yield f"| *{escape(name.text)}* (reference) | {' | '.join(map(_cell, cells))} |"
    if table.note:
        yield ""
        yield escape(table.note)


def _cell(cell: Cell) -> str:
    return f"**{escape(cell.text)}** \\*" if cell.best else escape(cell.text)

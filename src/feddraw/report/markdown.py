"""A report as Markdown, with its figures beside it: for repositories, and for readers without a
browser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from feddraw.report import blocks
from feddraw.report.blocks import Block, Cell, ReportDocument
from feddraw.text import safe_line, safe_text

_MARKDOWN_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#~$])")


def render_markdown(document: ReportDocument, folder: str) -> str:
    """The whole file; figures are looked for in the folder."""
    lines = [f"# {escape_markdown(document.title)}", "", *_markdown_blocks(document.blocks, folder)]
    return "\n".join(lines).rstrip() + "\n"


def escape_markdown(text: str) -> str:
    """Names are names, whatever they look like."""
    words = safe_line(" ".join(text.split()))
    return _MARKDOWN_MARKUP.sub(r"\\\1", words).replace(r"\<", "&lt;").replace(r"\>", "&gt;")


def _markdown_blocks(several: Sequence[Block], folder: str) -> Iterator[str]:
    for block in several:
        match block:
            case blocks.Heading(text, level):
                yield f"{'#' * level} {escape_markdown(text)}"
            case blocks.Paragraph(text):
                yield escape_markdown(text)
            case blocks.Bullets(items):
                yield from (f"- {escape_markdown(item)}" for item in items)
            case blocks.CodeBlock(text):
                yield f"```\n{safe_text(text).replace('```', '')}\n```"
            case blocks.OnlyFor() | blocks.SideBySide() | blocks.Fold():
                yield from _markdown_blocks(block.blocks, folder)
                continue
            case blocks.Gallery(pictures, note):
                yield from (
                    f"![{escape_markdown(one.words)}]({folder}/{one.name}.svg)" for one in pictures
                )
                if note:
                    yield f"\n{escape_markdown(note)}"
            case blocks.ReportTable():
                yield from _markdown_table(block)
        yield ""


def _markdown_table(table: blocks.ReportTable) -> Iterator[str]:
    yield f"**{escape_markdown(table.caption)}**"
    yield ""
    names = [f"{name} " for name, width in table.spans for _ in range(width)] or [""] * (
        len(table.header) - 1
    )
    header = [above + name for above, name in zip(["", *names], table.header, strict=True)]
    yield f"| {' | '.join(map(escape_markdown, header))} |"
    yield f"|---|{'---:|' * (len(table.header) - 1)}"
    for row in table.rows:
        yield f"| {' | '.join(map(_markdown_cell, row))} |"
    for name, *cells in table.references:
        yield (
            f"| *{escape_markdown(name.text)}* (reference) |"
            f" {' | '.join(map(_markdown_cell, cells))} |"
        )
    if table.note:
        yield ""
        yield escape_markdown(table.note)


def _markdown_cell(cell: Cell) -> str:
    return f"**{escape_markdown(cell.text)}** \\*" if cell.best else escape_markdown(cell.text)

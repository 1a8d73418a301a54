"""A report as Markdown, with its figures beside it: for repositories, and for readers without a
browser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feddraw.report import blocks
from feddraw.report.blocks import Block, Cell, ReportDocument, ReportTable
from feddraw.system.markdown import escape_markdown, markdown_table
from feddraw.text import safe_text


def render_markdown(document: ReportDocument, folder: str) -> str:
    """The whole file; figures are looked for in the folder."""
    lines = [f"# {escape_markdown(document.title)}", "", *_lines(document.blocks, folder)]
    return "\n".join(lines).rstrip() + "\n"


def _lines(several: Sequence[Block], folder: str) -> Iterator[str]:
    """The lines of these blocks, with an empty one behind each block."""
    for block in several:
        match block:
            case blocks.OnlyFor() | blocks.SideBySide() | blocks.Fold():
                yield from _lines(block.blocks, folder)
                continue
            case blocks.Heading(text, level):
                yield f"{'#' * level} {escape_markdown(text)}"
            case blocks.Paragraph(text):
                yield escape_markdown(text)
            case blocks.Bullets(items):
                yield from (f"- {escape_markdown(item)}" for item in items)
            case blocks.CodeBlock(text):
                yield f"```\n{safe_text(text).replace('```', '')}\n```"
            case blocks.Gallery(pictures, note):
                for picture in pictures:
                    yield f"![{escape_markdown(picture.words)}]({folder}/{picture.name}.svg)"
                if note:
                    yield f"\n{escape_markdown(note)}"
            case blocks.ReportTable():
                yield from _table_lines(block)
        yield ""


def _table_lines(table: ReportTable) -> Iterator[str]:
    yield f"**{escape_markdown(table.caption)}**"
    yield ""
    rows = [list(map(_cell, row)) for row in table.rows]
    for name, *cells in table.references:
        rows.append([f"*{escape_markdown(name.text)}* (reference)", *map(_cell, cells)])
    yield from markdown_table(list(map(escape_markdown, _header(table))), rows, numbers=True)
    if table.note:
        yield ""
        yield escape_markdown(table.note)


def _header(table: ReportTable) -> list[str]:
    """Each column's name, with the heading above it in front."""
    if not table.spans:
        return list(table.header)
    above = [f"{heading} " for heading, columns in table.spans for _ in range(columns)]
    return [heading + name for heading, name in zip(["", *above], table.header, strict=True)]


def _cell(cell: Cell) -> str:
    text = escape_markdown(cell.text)
    return f"**{text}** \\*" if cell.best else text

"""A report as one self-contained page: no network, no build, readable without its script."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence

from feddraw import __version__
from feddraw.analysis import palette
from feddraw.analysis.web_page import offline_policy, read_page_file
from feddraw.report import blocks
from feddraw.report.blocks import (
    LONG_WORDS,
    Block,
    Cell,
    Picture,
    ReportDocument,
    ReportTable,
)
from feddraw.text import safe_text

WIDEST_TABLE = 190  # characters: more would need type below 7 points on a page
PAGE_POINTS = 770  # of A4 across, between the margins


def render_html(document: ReportDocument, drawings: Mapping[str, str]) -> str:
    """The whole page as one text; drawings are SVG by the name of the picture."""
    script = read_page_file("report", "page.js")
    return read_page_file("report", "page.html").format(
        title=escape_html(document.title),
        policy=offline_policy(script),
        style=palette.css_variables() + read_page_file("report", "page.css"),
        script=script,
        navigation=_navigation(document),
        body=_Body(document, drawings).html(document.blocks),
        version=__version__,
    )


def escape_html(words: str) -> str:
    """Names are names, whatever they look like."""
    return html.escape(safe_text(words))


# ----------------------------------------------------------------------------------------- the menu


def _navigation(document: ReportDocument) -> str:
    metrics = "".join(
        f'<label><input type="radio" name="metric" value="{metric}"{" checked" * (not place)}>'
        f" {label}</label>"
        for place, (metric, label) in enumerate(document.metrics.items())
    )
    scenarios = [
        f'<option value="{place}">{escape_html(name)}</option>'
        for place, name in enumerate(document.scenarios)
    ]
    if len(scenarios) > 1:
        scenarios.append('<option value="">all</option>')
    methods = [
        f'<option value="{place}">{escape_html(name)}</option>'
        for place, name in enumerate(document.methods)
    ]
    method_choice = ""
    if len(methods) > 1:
        method_choice = (
            '<label class="choice">Method <select id="method"><option value="">all</option>'
            f"{''.join(methods)}</select></label>"
        )
    links = [_menu_link(heading, scenario, document) for heading, scenario in document.menu]
    return (
        f'<fieldset class="switch"><legend>Metric</legend>{metrics}</fieldset>'
        '<label class="choice">Scenario '
        f'<select id="scenario">{"".join(scenarios)}</select></label>{method_choice}'
        f"<ul>{''.join(links)}</ul>"
    )


def _menu_link(heading: blocks.Heading, scenario: str, document: ReportDocument) -> str:
    shown = f' data-scenario="{list(document.scenarios).index(scenario)}"' if scenario else ""
    address = f"#{escape_html(heading.anchor)}"
    return f'<li{shown}><a href="{address}">{escape_html(heading.text)}</a></li>'


# --------------------------------------------------------------------------------------- the blocks


class _Body:
    """Blocks to HTML; counts figures, whose parts need names of their own."""

    def __init__(self, document: ReportDocument, drawings: Mapping[str, str]) -> None:
        self.scenarios = list(document.scenarios)
        self.methods = list(document.methods)
        self.drawings = drawings
        self.figures = 0

    def html(self, several: Sequence[Block]) -> str:
        return "\n".join(map(self._block, several))

    def _block(self, block: Block) -> str:  # noqa: PLR0911 (one for each kind)
        match block:
            case blocks.Heading(text, level, anchor):
                address = f' id="{escape_html(anchor)}"' if anchor else ""
                return f"<h{level}{address}>{escape_html(text)}</h{level}>"
            case blocks.Paragraph(text):
                kind = ' class="lead"' if block.lead else ' class="note"' if block.quiet else ""
                return f"<p{kind}>{escape_html(text)}</p>"
            case blocks.Bullets(items):
                return f"<ul>{''.join(f'<li>{escape_html(item)}</li>' for item in items)}</ul>"
            case blocks.CodeBlock(text):
                return f'<pre tabindex="0"><code>{escape_html(text)}</code></pre>'
            case blocks.OnlyFor(inner, metric, scenario, method):
                shown = f' data-metric="{metric}"' if metric else ""
                if scenario:
                    shown += f' data-scenario="{self.scenarios.index(scenario)}"'
                return f"<section{shown}{self._of_method(method)}>{self.html(inner)}</section>"
            case blocks.SideBySide(inner):
                columns = [f"<div>{self._block(column)}</div>" for column in inner]
                return f'<div class="columns">{"".join(columns)}</div>'
            case blocks.Fold(title, inner):
                summary = f"<summary>{escape_html(title)}</summary>"
                return f"<details>{summary}{self.html(inner)}</details>"
            case blocks.Gallery(pictures, note):
                return self._gallery(pictures, note)
            case blocks.ReportTable():
                return "".join(map(self._table, block.in_blocks(WIDEST_TABLE)))

    def _of_method(self, method: str) -> str:
        """An attribute by which the page filters."""
        return f' data-method="{self.methods.index(method)}"' if method in self.methods else ""

    def _gallery(self, pictures: Sequence[Picture], note: str) -> str:
        """Figures side by side, over the whole width: by two where by three would leave one alone.
        The note of a single figure stands beside it.
        """
        figures = "".join(map(self._figure, pictures))
        if not figures:
            return ""
        if len(pictures) == 1 and note:
            return f'<div class="columns half"><div>{figures}</div><div>{_note(note)}</div></div>'
        by_two = len(pictures) == 2 or len(pictures) % 3 == 1
        kind = "gallery one" if len(pictures) == 1 else "gallery two" if by_two else "gallery"
        return f'<div class="{kind}">{figures}</div>{_note(note)}'

    def _figure(self, picture: Picture) -> str:
        self.figures += 1
        drawing = _svg_in_page_colours(self.drawings[picture.name], f"f{self.figures}-")
        description = f'<svg role="img" aria-label="{escape_html(picture.words)}"'
        drawing = drawing.replace("<svg", description, 1)
        return f"<figure{self._of_method(picture.method)}>{drawing}</figure>"

    def _table(self, table: ReportTable) -> str:
        caption = escape_html(table.caption)
        type_size = min(9.0, PAGE_POINTS / (0.56 * table.width))
        body = f"<tbody>{self._rows(table, table.rows)}</tbody>"
        if table.references:
            body += (
                f'<tbody class="fixed"><tr><th colspan="{len(table.header)}" scope="colgroup">for'
                " reference</th></tr></tbody>"
            )
            body += f"<tbody>{self._rows(table, table.references)}</tbody>"
        return (
            f'<div class="wide" tabindex="0" role="region" aria-label="{caption}">'
            f'<table{_kind(table)} style="--print: {type_size:.1f}pt"><caption>{caption}</caption>'
            f"<thead>{_header_rows(table)}</thead>{body}</table></div>{_note(table.note)}"
        )

    def _rows(self, table: ReportTable, rows: Sequence[Sequence[Cell]]) -> str:
        """A row that is about one method can be filtered by it."""
        column = table.header.index("method") if "method" in table.header else None
        lines = []
        for row in rows:
            name, *cells = row
            method = "" if column is None else self._of_method(row[column].text)
            lines.append(f"<tr{method}>{_cell(name, 'th')}{''.join(map(_cell, cells))}</tr>")
        return "".join(lines)


def _note(words: str) -> str:
    return f'<p class="note">{escape_html(words)}</p>' if words else ""


def _kind(table: ReportTable) -> str:
    """Long words are broken into lines where no number stands beside them."""
    cells = [cell for row in (*table.rows, *table.references) for cell in row]
    wordy = all(cell.value is None for cell in cells)
    return ' class="words"' if wordy and any(len(cell.text) > LONG_WORDS for cell in cells) else ""


def _header_rows(table: ReportTable) -> str:
    above = ""
    if table.spans:
        headings = [
            f'<th scope="colgroup" colspan="{columns}">{escape_html(heading)}</th>'
            for heading, columns in table.spans
        ]
        above = f'<tr class="spans"><td></td>{"".join(headings)}</tr>'
    cells = [
        _header_cell(name, [row[column] for row in table.rows])
        for column, name in enumerate(table.header)
    ]
    return f"{above}<tr>{''.join(cells)}</tr>"


def _header_cell(name: str, column: Sequence[Cell]) -> str:
    if not name:  # a column of remarks: nothing to read out, nothing to sort by
        return "<td></td>"
    name = escape_html(name)
    number = ' class="n"' if any(cell.value is not None for cell in column) else ""
    # The name stands twice: on continuation pages Chromium prints no button, and the style sheet
    # prints data-name.
    return f'<th scope="col"{number} data-name="{name}"><button type="button">{name}</button></th>'


def _cell(cell: Cell, tag: str = "td") -> str:
    scope = ' scope="row"' if tag == "th" else ""
    number = "" if cell.value is None else f' data-value="{cell.value!r}" class="n"'
    text = escape_html(cell.text)
    if cell.best:
        text = f"<strong>{text} *</strong>"
    return f"<{tag}{scope}{number}>{text}</{tag}>"


# ------------------------------------------------------------------------------------- the drawings


_SVG_COLOUR = re.compile("|".join(palette.COLOUR_NAMES))
_SVG_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
_SVG_TAG = re.compile(r"<(?:path|use|text) [^<>]*>")
_SVG_SPARE = re.compile(
    r"""(?<=\.\d\d)\d+(?=[ "]) | font-family:[^;"]*;[ ]? | [ ]transform="rotate\(-0[ ][^"]*" """,
    re.VERBOSE,
)


def _svg_in_page_colours(drawing: str, prefix: str) -> str:
    """A drawing whose ink and line colours are the page's, light or dark, and whose parts have
    names that begin with the prefix, so that they do not clash with other figures'.

    Coordinates have two decimals, less than a fiftieth of a pixel; the font is the page's own.
    """
    drawing = drawing[drawing.index("<svg") :]
    drawing = _SVG_METADATA.sub("", drawing)
    drawing = _SVG_TAG.sub(lambda tag: _SVG_SPARE.sub("", tag.group()).replace(" \n", " "), drawing)
    drawing = _SVG_COLOUR.sub(_page_colour, drawing)
    drawing = re.sub(r'\bid="', f'id="{prefix}', drawing)
    return re.sub(r'(url\(|href=")#', rf"\1#{prefix}", drawing)


def _page_colour(colour: re.Match[str]) -> str:
    return f"var(--{palette.COLOUR_NAMES[colour.group()]})"

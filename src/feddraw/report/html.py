"""A report as one self-contained page: no network, no build, readable without its script."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence

from feddraw import __version__
from feddraw.analysis import palette
from feddraw.analysis.web_page import offline_policy, read_page_file
from feddraw.report import blocks
from feddraw.report.blocks import Block, Cell, Picture, ReportDocument
from feddraw.results.recorded_run import METRICS
from feddraw.text import safe_text

WIDEST_HTML_TABLE = 190  # characters of a table: more would need type below 7 points on a page
PAGE_POINTS = 770  # of A4 across, between the margins


def escape_html(words: str) -> str:
    """Names are names, whatever they look like."""
    return html.escape(safe_text(words))


def render_html(document: ReportDocument, drawings: Mapping[str, str]) -> str:
    """The whole page as one text; drawings are SVG by the name of the picture."""
    script = read_page_file("report", "page.js")
    return read_page_file("report", "page.html").format(
        title=escape_html(document.title),
        policy=offline_policy(script),
        style=palette.css_variables() + read_page_file("report", "page.css"),
        script=script,
        navigation=_page_navigation(document),
        body="\n".join(_HtmlPage(document, drawings).rendered(document.blocks)),
        version=__version__,
    )


def _page_navigation(document: ReportDocument) -> str:
    metrics = "".join(
        f'<label><input type="radio" name="metric" value="{key}"{" checked" * (not place)}>'
        f" {label}</label>"
        for place, (key, label) in enumerate(METRICS.items())
    )
    names = [
        f'<option value="{place}">{escape_html(name)}</option>'
        for place, name in enumerate(document.scenarios)
    ]
    every = '<option value="">all</option>' if len(names) > 1 else ""
    links = "".join(_menu_link(heading, scenario, document) for heading, scenario in document.menu)
    return (
        f'<fieldset class="switch"><legend>Metric</legend>{metrics}</fieldset><label'
        ' class="choice">Scenario <select'
        f' id="scenario">{"".join(names)}{every}</select></label><ul>{links}</ul>'
    )


def _menu_link(heading: blocks.Heading, scenario: str, document: ReportDocument) -> str:
    shown = f' data-scenario="{list(document.scenarios).index(scenario)}"' if scenario else ""
    return (
        f'<li{shown}><a href="#{escape_html(heading.anchor)}">{escape_html(heading.text)}</a></li>'
    )


class _HtmlPage:
    """Blocks to HTML; counts figures, whose parts need names of their own."""

    def __init__(self, document: ReportDocument, drawings: Mapping[str, str]) -> None:
        self.scenarios = list(document.scenarios)
        self.drawings = drawings
        self.figures = 0

    def rendered(self, several: Sequence[Block]) -> Iterator[str]:
        """Each block as one piece of HTML."""
        for block in several:
            match block:
                case blocks.Heading(text, level, anchor):
                    place = f' id="{escape_html(anchor)}"' if anchor else ""
                    yield f"<h{level}{place}>{escape_html(text)}</h{level}>"
                case blocks.Paragraph(text):
                    kind = ' class="lead"' if block.lead else ' class="note"' if block.quiet else ""
                    yield f"<p{kind}>{escape_html(text)}</p>"
                case blocks.Bullets(items):
                    yield f"<ul>{''.join(f'<li>{escape_html(item)}</li>' for item in items)}</ul>"
                case blocks.CodeBlock(text):
                    yield f'<pre tabindex="0"><code>{escape_html(text)}</code></pre>'
                case blocks.OnlyFor(inside, metric, scenario):
                    shown = f' data-metric="{metric}"' if metric else ""
                    shown += (
                        f' data-scenario="{self.scenarios.index(scenario)}"' if scenario else ""
                    )
                    yield f"<section{shown}>{self._joined_html(inside)}</section>"
                case blocks.SideBySide(inside):
                    columns = "".join(f"<div>{one}</div>" for one in self.rendered(inside))
                    yield f'<div class="columns">{columns}</div>'
                case blocks.Fold(title, inside):
                    summary = f"<summary>{escape_html(title)}</summary>"
                    yield f"<details>{summary}{self._joined_html(inside)}</details>"
                case blocks.Gallery(pictures, note):
                    drawings = "".join(map(self._html_figure, pictures))
                    yield (
                        f'<div class="gallery">{drawings}</div>{_html_note(note)}'
                        if drawings
                        else ""
                    )
                case blocks.ReportTable():
                    yield "".join(map(self._html_table, block.in_blocks(WIDEST_HTML_TABLE)))

    def _joined_html(self, several: Sequence[Block]) -> str:
        return "\n".join(self.rendered(several))

    def _html_table(self, block: blocks.ReportTable) -> str:
        spans = "".join(
            f'<th scope="colgroup" colspan="{span}">{escape_html(name)}</th>'
            for name, span in block.spans
        )
        above = f'<tr class="spans"><td></td>{spans}</tr>' if spans else ""
        head = "".join(
            _html_header_cell(name, [row[i] for row in block.rows])
            for i, name in enumerate(block.header)
        )
        body = f"<tbody>{_html_rows(block.rows)}</tbody>"
        if block.references:
            every = len(block.header)
            body += (
                f'<tbody class="fixed"><tr><th colspan="{every}" scope="colgroup">for'
                " reference</th></tr></tbody>"
            )
            body += f"<tbody>{_html_rows(block.references)}</tbody>"
        region = (
            '<div class="wide" tabindex="0" role="region"'
            f' aria-label="{escape_html(block.caption)}">'
        )
        caption = f"<caption>{escape_html(block.caption)}</caption>"
        size = f' style="--print: {min(9.0, PAGE_POINTS / (0.56 * block.width)):.1f}pt"'
        table = f"<table{size}>{caption}<thead>{above}<tr>{head}</tr></thead>{body}</table>"
        return f"{region}{table}</div>{_html_note(block.note)}"

    def _html_figure(self, picture: Picture) -> str:
        self.figures += 1
        drawing = _svg_in_page_colours(self.drawings[picture.name], f"f{self.figures}-")
        width, _ = picture.figure.get_size_inches()
        drawing = drawing.replace(
            "<svg", f'<svg role="img" aria-label="{escape_html(picture.words)}"', 1
        )
        return f'<figure style="max-width: {width * 110:.0f}px">{drawing}</figure>'


def _html_note(words: str) -> str:
    return f'<p class="note">{escape_html(words)}</p>' if words else ""


def _html_header_cell(name: str, column: Sequence[Cell]) -> str:
    if not name:  # a column of remarks: nothing to read out, nothing to sort by
        return "<td></td>"
    number, name = (
        ' class="n"' if any(cell.value is not None for cell in column) else "",
        escape_html(name),
    )
    # The name stands twice: on continuation pages Chromium prints no button, and the style sheet
    # prints data-name.
    return f'<th scope="col"{number} data-name="{name}"><button type="button">{name}</button></th>'


def _html_rows(rows: Sequence[Sequence[Cell]]) -> str:
    return "".join(
        f"<tr>{_html_cell(name, 'th')}{''.join(map(_html_cell, cells))}</tr>"
        for name, *cells in rows
    )


def _html_cell(cell: Cell, tag: str = "td") -> str:
    scope = ' scope="row"' if tag == "th" else ""
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    text = f"<strong>{escape_html(cell.text)} *</strong>" if cell.best else escape_html(cell.text)
    number = ' class="n"' if cell.value is not None else ""
    return f"<{tag}{scope}{value}{number}>{text}</{tag}>"


_SVG_COLOUR = re.compile("|".join(palette.COLOUR_NAMES))
_SVG_TAG = re.compile(r"<(?:path|use|text) [^<>]*>")
_SVG_SPARE = re.compile(
    r"""(?<=\.\d\d)\d+(?=[ "]) | font-family:[^;"]*;[ ]? | [ ]transform="rotate\(-0[ ][^"]*" """,
    re.VERBOSE,
)


def _svg_in_page_colours(drawing: str, prefix: str) -> str:
    """Ink and line colours are the page's, light or dark; names of parts do not clash with other
    figures'.

    Coordinates have two decimals, less than a fiftieth of a pixel; the font is the page's own.
    """
    drawing = re.sub(
        r"<metadata>.*?</metadata>\s*", "", drawing[drawing.index("<svg") :], flags=re.DOTALL
    )
    drawing = _SVG_TAG.sub(lambda tag: _SVG_SPARE.sub("", tag.group()).replace(" \n", " "), drawing)
    drawing = _SVG_COLOUR.sub(
        lambda found: f"var(--{palette.COLOUR_NAMES[found.group()]})", drawing
    )
    drawing = re.sub(r'\bid="', f'id="{prefix}', drawing)
    return re.sub(r'(url\(|href=")#', rf"\1#{prefix}", drawing)

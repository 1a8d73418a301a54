"""A report as one self-contained page: no network, no build, readable without its script."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence

from feddraw import __version__, naming
from feddraw.analysis import palette
from feddraw.analysis.web_page import offline_policy, read
from feddraw.report import blocks
from feddraw.report.blocks import Block, Cell, Document, Picture
from feddraw.results.recorded_run import METRICS

WIDEST = 190  # characters of a table: more would need type below 7 points on a page
PAGE_POINTS = 770  # of A4 across, between the margins


def escape(words: str) -> str:
    """Names are names, whatever they look like."""
    return html.escape(naming.safe_text(words))


def render(document: Document, drawings: Mapping[str, str]) -> str:
    """The whole page as one text; drawings are SVG by the name of the picture."""
    script = read("report", "page.js")
    return read("report", "page.html").format(
        title=escape(document.title),
        policy=offline_policy(script),
        style=palette.variables() + read("report", "page.css"),
        script=script,
        navigation=_navigation(document),
        body="\n".join(_Page(document, drawings).rendered(document.blocks)),
        version=__version__,
    )


def _navigation(document: Document) -> str:
    metrics = "".join(
        f'<label><input type="radio" name="metric" value="{key}"{" checked" * (not place)}> {label}</label>'
        for place, (key, label) in enumerate(METRICS.items())
    )
    names = [f'<option value="{place}">{escape(name)}</option>' for place, name in enumerate(document.scenarios)]
    every = '<option value="">all</option>' if len(names) > 1 else ""
    links = "".join(_link(heading, scenario, document) for heading, scenario in document.menu)
    return (
        f'<fieldset class="switch"><legend>Metric</legend>{metrics}</fieldset>'
        f'<label class="choice">Scenario <select id="scenario">{"".join(names)}{every}</select></label>'
        f"<ul>{links}</ul>"
    )


def _link(heading: blocks.Heading, scenario: str, document: Document) -> str:
    shown = f' data-scenario="{list(document.scenarios).index(scenario)}"' if scenario else ""
    return f'<li{shown}><a href="#{escape(heading.anchor)}">{escape(heading.text)}</a></li>'


class _Page:
    """Blocks to HTML; counts figures, whose parts need names of their own."""

    def __init__(self, document: Document, drawings: Mapping[str, str]) -> None:
        self.scenarios = list(document.scenarios)
        self.drawings = drawings
        self.figures = 0

    def rendered(self, several: Sequence[Block]) -> Iterator[str]:
        """Each block as one piece of HTML."""
        for block in several:
            match block:
                case blocks.Heading(text, level, anchor):
                    place = f' id="{escape(anchor)}"' if anchor else ""
                    yield f"<h{level}{place}>{escape(text)}</h{level}>"
                case blocks.Text(text):
                    kind = ' class="lead"' if block.lead else ' class="note"' if block.quiet else ""
                    yield f"<p{kind}>{escape(text)}</p>"
                case blocks.Bullets(items):
                    yield f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"
                case blocks.Code(text):
                    yield f'<pre tabindex="0"><code>{escape(text)}</code></pre>'
                case blocks.Only(inside, metric, scenario):
                    shown = f' data-metric="{metric}"' if metric else ""
                    shown += f' data-scenario="{self.scenarios.index(scenario)}"' if scenario else ""
                    yield f"<section{shown}>{self._joined(inside)}</section>"
                case blocks.Columns(inside):
                    columns = "".join(f"<div>{one}</div>" for one in self.rendered(inside))
                    yield f'<div class="columns">{columns}</div>'
                case blocks.Fold(title, inside):
                    yield f"<details><summary>{escape(title)}</summary>{self._joined(inside)}</details>"
                case blocks.Gallery(pictures, note):
                    drawings = "".join(map(self._figure, pictures))
                    yield f'<div class="gallery">{drawings}</div>{_note(note)}' if drawings else ""
                case blocks.Table():
                    yield "".join(map(self._table, block.in_blocks(WIDEST)))

    def _joined(self, several: Sequence[Block]) -> str:
        return "\n".join(self.rendered(several))

    def _table(self, block: blocks.Table) -> str:
        spans = "".join(f'<th scope="colgroup" colspan="{width}">{escape(name)}</th>' for name, width in block.spans)
        above = f'<tr class="spans"><td></td>{spans}</tr>' if spans else ""
        head = "".join(_head(name, [row[place] for row in block.rows]) for place, name in enumerate(block.header))
        body = f"<tbody>{_rows(block.rows)}</tbody>"
        if block.references:
            span = len(block.header)
            body += f'<tbody class="fixed"><tr><th colspan="{span}" scope="colgroup">for reference</th></tr></tbody>'
            body += f"<tbody>{_rows(block.references)}</tbody>"
        region = f'<div class="wide" tabindex="0" role="region" aria-label="{escape(block.caption)}">'
        caption = f"<caption>{escape(block.caption)}</caption>"
        size = f' style="--print: {min(9.0, PAGE_POINTS / (0.56 * block.width)):.1f}pt"'
        table = f"<table{size}>{caption}<thead>{above}<tr>{head}</tr></thead>{body}</table>"
        return f"{region}{table}</div>{_note(block.note)}"

    def _figure(self, picture: Picture) -> str:
        self.figures += 1
        drawing = _themed(self.drawings[picture.name], f"f{self.figures}-")
        width, _ = picture.figure.get_size_inches()
        label = escape(picture.words)
        drawing = drawing.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
        return f'<figure style="max-width: {width * 110:.0f}px">{drawing}</figure>'


def _note(words: str) -> str:
    return f'<p class="note">{escape(words)}</p>' if words else ""


def _head(name: str, column: Sequence[Cell]) -> str:
    if not name:  # a column of remarks: nothing to read out, nothing to sort by
        return "<td></td>"
    number = ' class="n"' if any(cell.value is not None for cell in column) else ""
    # The name stands twice: on continuation pages Chromium prints no button, and the style sheet prints data-name.
    return f'<th scope="col"{number} data-name="{escape(name)}"><button type="button">{escape(name)}</button></th>'


def _rows(rows: Sequence[Sequence[Cell]]) -> str:
    return "".join(f"<tr>{_cell(row[0], 'th')}{''.join(_cell(cell, 'td') for cell in row[1:])}</tr>" for row in rows)


def _cell(cell: Cell, tag: str) -> str:
    scope = ' scope="row"' if tag == "th" else ""
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    text = f"<strong>{escape(cell.text)} *</strong>" if cell.best else escape(cell.text)
    number = ' class="n"' if cell.value is not None else ""
    return f"<{tag}{scope}{value}{number}>{text}</{tag}>"


# ---------------------------------------------------------------------------------------------------- figures


_COLOUR = re.compile("|".join(palette.DRAWN))
_TAG = re.compile(r"<(?:path|use|text) [^<>]*>")
_SPARE = re.compile(
    r"""(?<=\.\d\d)\d+(?=[ "]) | font-family:[^;"]*;[ ]? | [ ]transform="rotate\(-0[ ][^"]*" """, re.VERBOSE
)


def _themed(drawing: str, prefix: str) -> str:
    """Ink and line colours are the page's, light or dark; names of parts do not clash with other figures'.

    Coordinates have two decimals, less than a fiftieth of a pixel; the font is the page's own.
    """
    drawing = re.sub(r"<metadata>.*?</metadata>\s*", "", drawing[drawing.index("<svg") :], flags=re.DOTALL)
    drawing = _TAG.sub(lambda tag: _SPARE.sub("", tag.group()).replace(" \n", " "), drawing)
    drawing = _COLOUR.sub(lambda found: f"var(--{palette.DRAWN[found.group()]})", drawing)
    drawing = re.sub(r'\bid="', f'id="{prefix}', drawing)
    return re.sub(r'(url\(|href=")#', rf"\1#{prefix}", drawing)

"""The tables of a report for papers: LaTeX with booktabs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from feddraw.report.blocks import Block, Cell, ReportDocument, ReportTable, blocks_and_inner
from feddraw.text import safe_line

# Characters of a table in footnote size: in a column, and across the page if made smaller.
ONE_COLUMN = 52
ACROSS = 190
_CHARACTERS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "[": "{[}",  # bare at the start of a row or an item it would open an option of what is before
    "]": "{]}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "–": "--",
    "…": r"\dots{}",
    "−": "$-$",
    "×": r"$\times$",
    "†": r"\dag{}",
    "*": r"$^{*}$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "α": r"$\alpha$",
    "χ": r"$\chi$",
    "²": r"$^{2}$",
}


def render_latex(document: ReportDocument) -> str:
    """Every table that has a label, one after another."""
    head = (
        "% Tables of a feddraw report; they need \\usepackage{booktabs,graphicx}. The best of a"
        " column is bold.\n% A table fits its column, or where it is wide the page, of a one- or"
        " two-column document.\n"
    )
    return head + latex_tables(document.blocks)


def latex_tables(blocks: Sequence[Block]) -> str:
    """Every table of these blocks that has a label; a very wide one in several."""
    labelled = [
        block
        for block in blocks_and_inner(blocks)
        if isinstance(block, ReportTable) and block.label
    ]
    return "\n".join(_table(part) for table in labelled for part in table.in_blocks(ACROSS))


def escape_latex(text: str) -> str:
    """Text as one line of LaTeX that shows the same characters."""
    line = safe_line(" ".join(text.split()))
    return "".join(_CHARACTERS.get(character, character) for character in line)


def _table(table: ReportTable) -> str:
    """In one column of a two-column page where it fits, else across both; never wider than that."""
    if table.width > ONE_COLUMN:
        environment, widest = "table*", r"\textwidth"
    else:
        environment, widest = "table", r"\columnwidth"
    rows = list(map(_row, table.rows))
    if table.references:
        rows += [r"\midrule", *map(_row, table.references)]
    alignment = "c" if table.spans else "r"
    caption = escape_latex(table.caption) + ("" if table.caption.endswith(".") else ".")
    return "\n".join(
        [
            rf"\begin{{{environment}}}[!htbp]",
            r"\centering",
            r"\footnotesize",
            rf"\caption{{{caption} {escape_latex(table.note)}}}",
            rf"\label{{tab:{table.label}}}\vspace{{3pt}}",
            rf"\resizebox{{\ifdim\width>{widest} {widest}\else\width\fi}}{{!}}{{%",
            rf"\begin{{tabular}}{{l{alignment * (len(table.header) - 1)}}}",
            r"\toprule",
            *_headings_above(table),
            " & ".join(map(escape_latex, table.header)) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}}",
            rf"\end{{{environment}}}",
            "",
        ]
    )


def _headings_above(table: ReportTable) -> list[str]:
    """The headings above the header, each with a line below it."""
    if not table.spans:
        return []
    headings = [
        rf"\multicolumn{{{columns}}}{{c}}{{{escape_latex(name)}}}" for name, columns in table.spans
    ]
    ends = list(accumulate((columns for _, columns in table.spans), initial=1))
    lines = [rf"\cmidrule(lr){{{start + 1}-{end}}}" for start, end in pairwise(ends)]
    return [f" & {' & '.join(headings)} " + r"\\", "".join(lines)]


def _row(row: Sequence[Cell]) -> str:
    return " & ".join(map(_cell, row)) + r" \\"


def _cell(cell: Cell) -> str:
    text = escape_latex(cell.text)
    return rf"\textbf{{{text}}}" if cell.best else text

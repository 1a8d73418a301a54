"""The tables of a report for papers: LaTeX with booktabs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from feddraw.report.blocks import Block, Cell, ReportDocument, ReportTable, blocks_and_inner
from feddraw.text import safe_line

ONE_COLUMN, ACROSS = (
    52,
    190,
)  # characters of a table in footnote size: in a column, and across the page if made smaller
_LATEX_CHARACTERS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
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
    return "\n".join(_latex_table(part) for table in labelled for part in table.in_blocks(ACROSS))


def escape_latex(text: str) -> str:
    return "".join(_LATEX_CHARACTERS.get(sign, sign) for sign in safe_line(" ".join(text.split())))


def _latex_table(table: ReportTable) -> str:
    """In one column of a two-column page where there is room, else across both; never wider than
    that.
    """
    rows = [_latex_row(row) for row in table.rows]
    if table.references:
        rows += [r"\midrule", *(_latex_row(row) for row in table.references)]
    across = table.width > ONE_COLUMN
    kind, room = ("table*", r"\textwidth") if across else ("table", r"\columnwidth")
    place = "c" if table.spans else "r"
    return "\n".join(
        [
            rf"\begin{{{kind}}}[!htbp]",
            r"\centering",
            r"\footnotesize",
            rf"\caption{{{_caption_sentence(table.caption)} {escape_latex(table.note)}}}",
            rf"\label{{tab:{table.label}}}\vspace{{3pt}}",
            rf"\resizebox{{\ifdim\width>{room} {room}\else\width\fi}}{{!}}{{%",
            rf"\begin{{tabular}}{{l{place * (len(table.header) - 1)}}}",
            r"\toprule",
            *_latex_spans(table),
            " & ".join(map(escape_latex, table.header)) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}}",
            rf"\end{{{kind}}}",
            "",
        ]
    )


def _latex_spans(table: ReportTable) -> list[str]:
    """The headings above the header, each with a line below it."""
    if not table.spans:
        return []
    heads = [
        rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(name)}}}" for name, width in table.spans
    ]
    ends = list(accumulate((width for _, width in table.spans), initial=1))
    lines = [rf"\cmidrule(lr){{{start + 1}-{end}}}" for start, end in pairwise(ends)]
    return [f" & {' & '.join(heads)} " + r"\\", "".join(lines)]


def _caption_sentence(caption: str) -> str:
    return escape_latex(caption) if caption.endswith(".") else f"{escape_latex(caption)}."


def _latex_row(row: Sequence[Cell]) -> str:
    cells = [
        rf"\textbf{{{escape_latex(cell.text)}}}" if cell.best else escape_latex(cell.text)
        for cell in row
    ]
    return " & ".join(cells) + r" \\"

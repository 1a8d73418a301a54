"""The tables of a report for papers: LaTeX with booktabs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from feddraw import naming
from feddraw.report.blocks import Block, Cell, Document, Table, every_block

ONE_COLUMN, ACROSS = 52, 190  # characters of a table in footnote size: in a column, and across the page if made smaller
_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "–": "--", "…": r"\dots{}", "−": "$-$", "×": r"$\times$", "†": r"\dag{}", "*": r"$^{*}$",
    "≥": r"$\geq$", "≤": r"$\leq$", "α": r"$\alpha$", "χ": r"$\chi$", "²": r"$^{2}$",
}  # fmt: skip


def render(document: Document) -> str:
    """Every table that has a label, one after another."""
    head = (
        "% Tables of a feddraw report; they need \\usepackage{booktabs,graphicx}. The best of a column is bold.\n"
        "% A table fits its column, or where it is wide the page, of a one- or two-column document.\n"
    )
    return head + tables(document.blocks)


def tables(blocks: Sequence[Block]) -> str:
    """Every table of these blocks that has a label; a very wide one in several."""
    labelled = [block for block in every_block(blocks) if isinstance(block, Table) and block.label]
    return "\n".join(_table(part) for table in labelled for part in table.in_blocks(ACROSS))


def escape(text: str) -> str:
    return "".join(_SPECIAL.get(sign, sign) for sign in naming.safe_line(" ".join(text.split())))


def _table(table: Table) -> str:
    """In one column of a two-column page where there is room, else across both; never wider than that."""
    rows = [_row(row) for row in table.rows]
    if table.references:
        rows += [r"\midrule", *(_row(row) for row in table.references)]
    across = table.width > ONE_COLUMN
    kind, room = ("table*", r"\textwidth") if across else ("table", r"\columnwidth")
    place = "c" if table.spans else "r"
    return "\n".join(
        [
            rf"\begin{{{kind}}}[!htbp]",
            r"\centering",
            r"\footnotesize",
            rf"\caption{{{_sentence(table.caption)} {escape(table.note)}}}",
            rf"\label{{tab:{table.label}}}\vspace{{3pt}}",
            rf"\resizebox{{\ifdim\width>{room} {room}\else\width\fi}}{{!}}{{%",
            rf"\begin{{tabular}}{{l{place * (len(table.header) - 1)}}}",
            r"\toprule",
            *_spans(table),
            " & ".join(map(escape, table.header)) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}}",
            rf"\end{{{kind}}}",
            "",
        ]
    )


def _spans(table: Table) -> list[str]:
    """The headings above the header, each with a line below it."""
    if not table.spans:
        return []
    heads = [rf"\multicolumn{{{width}}}{{c}}{{{escape(name)}}}" for name, width in table.spans]
    ends = list(accumulate((width for _, width in table.spans), initial=1))
    lines = [rf"\cmidrule(lr){{{start + 1}-{end}}}" for start, end in pairwise(ends)]
    return [f" & {' & '.join(heads)} " + r"\\", "".join(lines)]


def _sentence(caption: str) -> str:
    return escape(caption) if caption.endswith(".") else f"{escape(caption)}."


def _row(row: Sequence[Cell]) -> str:
    cells = [rf"\textbf{{{escape(cell.text)}}}" if cell.best else escape(cell.text) for cell in row]
    return " & ".join(cells) + r" \\"

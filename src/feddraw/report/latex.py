"""The tables of a report for papers: LaTeX with booktabs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feddraw import naming
from feddraw.report.blocks import Block, Cell, Document, Table, inside

_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "–": "--", "…": r"\dots{}",
}  # fmt: skip


def render(document: Document) -> str:
    """Every table that has a label, one after another."""
    head = "% Tables of a feddraw report; they need \\usepackage{booktabs}. The best of a column is bold.\n"
    return head + "\n".join(_table(table) for table in _labelled(document.blocks))


def escape(text: str) -> str:
    return "".join(_SPECIAL.get(sign, sign) for sign in naming.line(" ".join(text.split())))


def _labelled(blocks: Sequence[Block]) -> Iterator[Table]:
    for block in blocks:
        match block:
            case Table(label=label) if label:
                yield block
            case _:
                yield from _labelled(inside(block))


def _table(table: Table) -> str:
    rows = [_row(row) for row in table.rows]
    if table.references:
        rows += [r"\midrule", *(_row(row) for row in table.references)]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(table.caption)}. {escape(table.note)}}}",
            rf"\label{{tab:{table.label}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            r"\toprule",
            " & ".join(map(escape, table.header)) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _row(row: Sequence[Cell]) -> str:
    cells = [rf"\textbf{{{escape(cell.text)}}}" if cell.best else escape(cell.text) for cell in row]
    return " & ".join(cells) + r" \\"

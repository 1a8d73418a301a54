"""A report's tables and figures in the paper's form as a LaTeX document, and its PDF where TeX is
installed.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from feddraw.errors import RunFailed, UserError
from feddraw.report.blocks import (
    Block,
    Bullets,
    Gallery,
    Heading,
    OnlyFor,
    Paragraph,
    Picture,
    ReportDocument,
    all_pictures,
)
from feddraw.report.latex import escape_latex, latex_tables
from feddraw.system.file_writing import write_whole

TEX_PROGRAMS = {  # program: its options before the file
    "pdflatex": ["-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape"],
    "lualatex": ["-interaction=nonstopmode", "-halt-on-error", "--no-shell-escape"],
    "xelatex": ["-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape"],
    "tectonic": ["--untrusted"],
}
TEX_SECONDS = 300  # after which TeX is given up
PAPER_ANCHOR = "paper"  # of the section's heading

TEX_PREAMBLE = r"""\documentclass[10pt,a4paper]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[margin=18mm]{geometry}
\usepackage{booktabs,graphicx}
\renewcommand{\topfraction}{0.95}\renewcommand{\bottomfraction}{0.9}\renewcommand{\textfraction}{0.02}
\renewcommand{\floatpagefraction}{0.85}
\begin{document}
"""


def paper_blocks(document: ReportDocument) -> list[Block]:
    """The blocks under the heading of the paper's form; none where the report has no such
    section.
    """
    blocks: list[Block] = []
    inside = False
    for block in document.blocks:
        if isinstance(block, Heading) and block.level == 2:
            inside = block.anchor == PAPER_ANCHOR
        elif isinstance(block, OnlyFor):
            continue  # what is about one scenario has headings of its own
        elif inside:
            blocks.append(block)
    return blocks


def paper_pictures(document: ReportDocument) -> list[Picture]:
    """The pictures under that heading."""
    return all_pictures(paper_blocks(document))


def render_paper_tex(document: ReportDocument, figures: str) -> str:
    """The whole document; figures are PDF files in the folder of this name."""
    lines = [TEX_PREAMBLE, rf"\section*{{{escape_latex(document.title)}}}", ""]
    for block in paper_blocks(document):
        match block:
            case Paragraph(text):
                lines += [escape_latex(text), ""]
            case Bullets(items):
                lines.append(r"\begin{itemize}")
                lines += [rf"\item {escape_latex(item)}" for item in items]
                lines += [r"\end{itemize}", ""]
            case Gallery():
                lines += [_figure(block, figures), ""]
            case _:
                lines.append(latex_tables([block]))
    return "\n".join([*lines, r"\end{document}", ""])


def _figure(gallery: Gallery, folder: str) -> str:
    """Two panels in a row across the page."""
    panels = [
        rf"\includegraphics[width=0.48\textwidth]{{{folder}/{picture.name}.pdf}}"
        for picture in gallery.pictures
    ]
    rows = [r"\hfill".join(panels[start : start + 2]) for start in range(0, len(panels), 2)]
    caption = gallery.note or "; ".join(picture.words for picture in gallery.pictures)
    return "\n".join(
        [
            r"\begin{figure*}[!htbp]",
            r"\centering",
            "\\\\[1ex]\n".join(rows),
            rf"\caption{{{escape_latex(caption)}}}",
            r"\end{figure*}",
        ]
    )


def tex_program() -> str:
    """The first TeX program that is installed."""
    for program in TEX_PROGRAMS:
        if shutil.which(program):
            return program
    raise UserError(
        f"a PDF needs TeX ({', '.join(TEX_PROGRAMS)}), and none is installed: on Debian, apt"
        " install texlive-latex-recommended; or compile paper.tex elsewhere"
    )


def compile_pdf(source: Path) -> Path:
    """The document's PDF beside it; TeX works in a folder of its own, and its output is kept only
    if it fails.
    """
    program = tex_program()
    command = [program, *TEX_PROGRAMS[program], source.name]
    times = 1 if program == "tectonic" else 2  # the second time all references are known
    with tempfile.TemporaryDirectory() as place:
        workplace = Path(place)
        shutil.copy(source, workplace)
        shutil.copytree(
            source.parent / "figures",
            workplace / "figures",
            ignore=shutil.ignore_patterns("*.svg", "*.png"),
        )
        for _ in range(times):
            done = _run_tex(command, workplace)
        compiled = workplace / source.with_suffix(".pdf").name
        if done.returncode or not compiled.is_file():
            log = source.with_suffix(".log")
            write_whole(log, done.stdout)
            raise RunFailed(f"{program} could not make a PDF of {source}: see {log}")
        target = source.with_suffix(".pdf")
        write_whole(target, compiled.read_bytes())
    return target


def _run_tex(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TEX_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunFailed(
            f"{command[0]} did not end within {TEX_SECONDS} s: compile paper.tex yourself"
        ) from None

"""Run folders to a report: one self-contained page, its Markdown twin, LaTeX tables, a tidy table
and the figures.
"""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from feddraw.analysis.plots import figure_style, lay_out_figure, save_figure
from feddraw.errors import UserError
from feddraw.report import html, latex, markdown, paper_tex
from feddraw.report.blocks import (
    Block,
    Fold,
    Gallery,
    OnlyFor,
    Picture,
    ReportDocument,
    SideBySide,
    blocks_and_inner,
)
from feddraw.report.report_statistics import Report, Say, compute_report
from feddraw.report.section_order import compose_report
from feddraw.report.sections.what_was_run import command_that_was_run
from feddraw.results.run_collection import RunCollection, collect_runs
from feddraw.system.csv_cells import csv_text
from feddraw.system.file_reading import read_json, sha256_of
from feddraw.system.file_writing import make_folder, make_subfolder, refuse_link, write_whole
from feddraw.text import distinct_slugs, safe_text

ALPHA = 0.05
REPLICATES = 1000
FIGURES_FOLDER = "figures"
FIGURES_MANIFEST = "figures.json"  # which figures a report wrote, with their SHA-256
REPORT_FILES = ("report.md", "tables.tex", "report.csv", "report.html", "paper.tex", "paper.pdf")


@dataclass(frozen=True, eq=False)
class WrittenReport:
    """What was found, and where it was written."""

    report: Report
    page: Path
    markdown: Path
    tables: Path
    results: Path
    paper: Path | None = (
        None  # its tables and figures as the paper's, where there are several scenarios
    )
    pdf: Path | None = None  # the same, compiled


def write_report(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    title: str = "",
    command: str = "",
    alpha: float = ALPHA,
    replicates: int = REPLICATES,
    margin: float = 0.0,
    pdf: bool = False,
    say: Say = lambda _: None,
) -> WrittenReport:
    """Read every run below the folders and write about them, to the first folder unless told
    otherwise.
    """
    if pdf:
        paper_tex.tex_program()  # before anything takes time
    target = folders[0] if out is None else out
    collection = collect_runs(folders)
    given = {"out": out, "title": title, "alpha": alpha, "replicates": replicates, "margin": margin}
    usual = {"out": None, "title": "", "alpha": ALPHA, "replicates": REPLICATES, "margin": 0.0}
    command = command or command_that_was_run(
        folders, {name: own for name, own in given.items() if own != usual[name]}
    )
    report = compute_report(
        collection,
        alpha=alpha,
        replicates=replicates,
        command=command,
        say=say,
        margin=margin,
        folders=folders,
    )
    heading = title or f"Report on {', '.join(folder.name or str(folder) for folder in folders)}"
    _make_figures_folder(target / FIGURES_FOLDER)
    for name in REPORT_FILES:
        refuse_link(target / name)
    with figure_style():
        document = _with_distinct_figures(compose_report(report, heading, say))
        say("writing")
        drawings = _write_figures(document.blocks, target / FIGURES_FOLDER)
        for picture in (in_paper := paper_tex.paper_pictures(document)):
            save_figure(picture.figure, target / FIGURES_FOLDER / f"{picture.name}.pdf")
    files = (
        {"paper.tex": paper_tex.render_paper_tex(document, FIGURES_FOLDER)}
        if paper_tex.paper_blocks(document)
        else {}
    )
    files |= {
        "report.md": markdown.render_markdown(document, FIGURES_FOLDER),
        "tables.tex": latex.render_latex(document),
        "report.csv": _tidy_results_csv(collection),
        "report.html": html.render_html(document, drawings),
    }
    for name, content in files.items():
        write_whole(
            target / name, content.encode(errors="backslashreplace")
        )  # a path need not be text
    own = [f"{name}.{ending}" for name in drawings for ending in ("svg", "png")]
    _forget_old_figures(
        target / FIGURES_FOLDER, [*own, *(f"{picture.name}.pdf" for picture in in_paper)]
    )
    paper = target / "paper.tex" if "paper.tex" in files else None
    if pdf and paper is None:
        raise UserError(
            "the PDF has the paper's tables over scenarios: it needs two scenarios and two methods"
        )
    page, twin, tables, results = (
        target / name for name in ("report.html", "report.md", "tables.tex", "report.csv")
    )
    compiled = paper_tex.compile_pdf(paper) if pdf and paper is not None else None
    return WrittenReport(report, page, twin, tables, results, paper, compiled)


def _make_figures_folder(folder: Path) -> None:
    try:
        make_folder(folder.parent)
        make_subfolder(folder)
    except OSError as error:
        raise UserError(
            f"cannot make {folder}: {error.strerror}; choose another folder with --out"
        ) from None


def _forget_old_figures(folder: Path, written: Sequence[str]) -> None:
    """Remove the figures of the report before that this one lacks, as far as they are unchanged;
    note our own.
    """
    noted = folder / FIGURES_MANIFEST
    try:
        before = read_json(noted) if noted.is_file() and not noted.is_symlink() else {}
    except UserError:
        before = {}  # not as we write it: then nothing is known to be ours
    here = {
        entry.name: entry for entry in folder.iterdir() if entry.suffix in (".svg", ".png", ".pdf")
    }
    for name in here.keys() & before.keys() - set(written):
        if (
            not here[name].is_symlink()
            and here[name].is_file()
            and sha256_of(here[name]) == before[name]
        ):
            here[name].unlink()
    content = {name: sha256_of(folder / name) for name in written}
    write_whole(noted, (json.dumps(content, indent=1) + "\n").encode())


def _write_figures(blocks: Sequence[Block], folder: Path) -> dict[str, str]:
    """SVG and PNG to the folder; gives the SVG by name, without a background, for the page."""
    drawings = {}
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph"
        )  # a name in a script that the font of PNGs lacks
        for picture in _all_pictures(blocks):
            drawings[picture.name] = svg = _report_svg_text(picture.figure)
            head, opening, rest = svg.partition("\n <metadata>")
            paper = '\n <rect width="100%" height="100%" fill="#ffffff"/>'
            write_whole(folder / f"{picture.name}.svg", f"{head}{paper}{opening}{rest}".encode())
            save_figure(picture.figure, folder / f"{picture.name}.png")
    return drawings


def _report_svg_text(figure: Figure) -> str:
    lay_out_figure(figure)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    return safe_text(text.getvalue())  # an SVG with a control character in it is no SVG


def _with_distinct_figures(document: ReportDocument) -> ReportDocument:
    """No two figures share a file: names that differ may have one slug."""
    names = distinct_slugs([picture.name for picture in _all_pictures(document.blocks)])

    def renamed(block: Block) -> Block:
        match block:
            case Gallery(pictures):
                return replace(
                    block, pictures=[replace(picture, name=next(names)) for picture in pictures]
                )
            case OnlyFor() | SideBySide() | Fold():
                return replace(block, blocks=[renamed(one) for one in block.blocks])
        return block

    return replace(document, blocks=[renamed(block) for block in document.blocks])


def _all_pictures(blocks: Sequence[Block]) -> list[Picture]:
    return [
        one
        for block in blocks_and_inner(blocks)
        if isinstance(block, Gallery)
        for one in block.pictures
    ]


def _tidy_results_csv(collection: RunCollection) -> str:
    """One row per run: what `feddraw stats --over seed` reads."""
    rows: list[list[object]] = [["scenario", "method", "seed", "auc", "gm"]]
    for run in collection.runs:
        values = [run.test(metric) for metric in ("auc", "gm")]
        rows.append(
            [
                run.scenario,
                run.method,
                run.repeat,
                *(repr(v) if math.isfinite(v) else "" for v in values),
            ]
        )
    return csv_text(rows)

"""Run folders to a report: one self-contained page, its Markdown twin, LaTeX tables, a tidy table
and the figures.
"""

from __future__ import annotations

import io
import json
import math
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
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
    all_pictures,
)
from feddraw.report.runs import RunCollection, collect_runs
from feddraw.report.section_order import compose_report
from feddraw.report.settings import ReportSettings
from feddraw.report.statistics import Report, compute_report
from feddraw.system.csv_cells import csv_text
from feddraw.system.file_reading import read_json, sha256_of
from feddraw.system.file_writing import make_folder, make_subfolder, refuse_link, write_whole
from feddraw.system.progress import Progress, no_progress
from feddraw.tasks import runs_of_one_task, task_of_runs
from feddraw.text import distinct_slugs, safe_text

FIGURES_FOLDER = "figures"
FIGURES_MANIFEST = "figures.json"  # which figures a report wrote, with their SHA-256
REPORT_FILES = ("report.md", "tables.tex", "report.csv", "report.html", "paper.tex", "paper.pdf")


@dataclass(frozen=True, eq=False)
class WrittenReport:
    """What was found, and where it was written."""

    report: Report
    folder: Path
    has_paper: bool  # tables and figures in the paper's form, where there are several scenarios

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    @property
    def markdown(self) -> Path:
        return self.folder / "report.md"

    @property
    def tables(self) -> Path:
        return self.folder / "tables.tex"

    @property
    def results(self) -> Path:
        return self.folder / "report.csv"

    @property
    def paper(self) -> Path | None:
        return self.folder / "paper.tex" if self.has_paper else None


def write_report(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    settings: ReportSettings | None = None,
    title: str = "",
    command: str = "",
    progress: Progress = no_progress,
) -> WrittenReport:
    """Read every run below the folders and write about them, to the first folder unless `out` names
    another.

    `command` is what the page says it was made by.
    """
    settings = settings or ReportSettings()
    if not command:
        command = _command(folders, out, title, settings)
    report = compute_report(
        collect_runs(folders),
        settings=settings,
        command=command,
        progress=progress,
        folders=folders,
    )
    target = folders[0] if out is None else out
    _make_figures_folder(target / FIGURES_FOLDER)
    for name in REPORT_FILES:
        refuse_link(target / name)
    heading = title or f"Report on {', '.join(folder.name or str(folder) for folder in folders)}"
    with figure_style():
        document = _with_distinct_figures(compose_report(report, heading, progress))
        drawings, figure_files = _write_figures(document, target / FIGURES_FOLDER)
    texts = _texts(document, drawings, report.collection)
    for name, text in texts.items():
        content = text.encode(errors="backslashreplace")  # a path need not be text
        write_whole(target / name, content)
    _remove_old_figures(target / FIGURES_FOLDER, figure_files)
    return WrittenReport(report, target, has_paper="paper.tex" in texts)


def write_pdf(written: WrittenReport) -> Path:
    """Compile the report's tables and figures in the paper's form; gives the PDF."""
    if written.paper is None:
        raise UserError(
            "the PDF has the paper's tables over scenarios: it needs two scenarios and two methods"
        )
    return paper_tex.compile_pdf(written.paper)


def _command(
    folders: Sequence[Path],
    out: Path | None,
    title: str,
    settings: ReportSettings,
) -> str:
    """The command that writes this report, with folders by their last name where they are not below
    the current one.
    """
    words = ["feddraw", "report", *map(_folder_in_command, folders)]
    if out is not None:
        words += ["--out", _folder_in_command(out)]
    if title:
        words += ["--title", title]
    return shlex.join([*words, *settings.options])


def _folder_in_command(path: Path) -> str:
    return path.absolute().name if path.is_absolute() or ".." in path.parts else str(path)


def _texts(
    document: ReportDocument, drawings: Mapping[str, str], collection: RunCollection
) -> dict[str, str]:
    """The text files of a report by name."""
    texts = {}
    if paper_tex.paper_blocks(document):
        texts["paper.tex"] = paper_tex.render_paper_tex(document, FIGURES_FOLDER)
    texts["report.md"] = markdown.render_markdown(document, FIGURES_FOLDER)
    texts["tables.tex"] = latex.render_latex(document)
    texts["report.csv"] = tidy_results(collection)
    texts["report.html"] = html.render_html(document, drawings)
    return texts


def tidy_results(collection: RunCollection) -> str:
    """A CSV with one row per run: what `feddraw stats --over seed` reads."""
    collection = runs_of_one_task(collection)
    task = task_of_runs(collection.runs)
    metrics = [*task.metrics, *task.more]
    rows: list[list[str]] = [["scenario", "method", "seed", *metrics]]
    for run in collection.runs:
        values = [run.test(metric) for metric in metrics]
        numbers = [repr(value) if math.isfinite(value) else "" for value in values]
        rows.append([run.scenario, run.method, run.repeat, *numbers])
    return csv_text(rows)


# -------------------------------------------------------------------------------------- the figures


def _make_figures_folder(folder: Path) -> None:
    try:
        make_folder(folder.parent)
        make_subfolder(folder)
    except OSError as error:
        raise UserError(
            f"cannot make {folder}: {error.strerror}; choose another folder with --out"
        ) from None


def _with_distinct_figures(document: ReportDocument) -> ReportDocument:
    """No two figures share a file: names that differ may have one slug."""
    names = distinct_slugs(picture.name for picture in all_pictures(document.blocks))
    return replace(document, blocks=[_renamed(block, names) for block in document.blocks])


def _renamed(block: Block, names: Iterator[str]) -> Block:
    """The block with the next names for its pictures."""
    match block:
        case Gallery(pictures):
            return replace(block, pictures=[replace(p, name=next(names)) for p in pictures])
        case OnlyFor(inner) | SideBySide(inner) | Fold(blocks=inner):
            return replace(block, blocks=[_renamed(block, names) for block in inner])
    return block


def _write_figures(document: ReportDocument, folder: Path) -> tuple[dict[str, str], list[str]]:
    """All figures as SVG and PNG to the folder, those of the paper's form as PDF, too; gives the
    SVG by the picture's name, without a background, for the page, and the names of the files.
    """
    drawings = {}
    written = []
    with warnings.catch_warnings():
        # a name in a script that the font of PNGs lacks
        warnings.filterwarnings("ignore", message="Glyph")
        for picture in all_pictures(document.blocks):
            drawings[picture.name] = _transparent_svg(picture.figure)
            svg = _with_white_ground(drawings[picture.name])
            write_whole(folder / f"{picture.name}.svg", svg.encode())
            written += [f"{picture.name}.svg", _saved(picture, folder, "png")]
    for picture in paper_tex.paper_pictures(document):
        written.append(_saved(picture, folder, "pdf"))
    return drawings, written


def _saved(picture: Picture, folder: Path, ending: str) -> str:
    """The name of the file."""
    name = f"{picture.name}.{ending}"
    save_figure(picture.figure, folder / name)
    return name


def _transparent_svg(figure: Figure) -> str:
    lay_out_figure(figure)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    return safe_text(text.getvalue())  # an SVG with a control character in it is no SVG


def _with_white_ground(svg: str) -> str:
    head, metadata, rest = svg.partition("\n <metadata>")
    ground = '\n <rect width="100%" height="100%" fill="#ffffff"/>'
    return head + ground + metadata + rest


def _remove_old_figures(folder: Path, written: Sequence[str]) -> None:
    """Remove the figures of the report before that this one lacks, as far as they are unchanged;
    note our own.
    """
    manifest = folder / FIGURES_MANIFEST
    try:
        noted = read_json(manifest) if manifest.is_file() and not manifest.is_symlink() else {}
    except UserError:
        noted = {}  # not as we write it: then nothing is known to be ours
    for path in list(folder.iterdir()):
        is_figure = path.suffix in (".svg", ".png", ".pdf")
        if not is_figure or path.name in written or path.name not in noted:
            continue
        if path.is_file() and not path.is_symlink() and sha256_of(path) == noted[path.name]:
            path.unlink()
    hashes = {name: sha256_of(folder / name) for name in written}
    write_whole(manifest, (json.dumps(hashes, indent=1) + "\n").encode())

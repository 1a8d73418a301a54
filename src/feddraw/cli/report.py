"""`feddraw report`: one page about many runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from feddraw.cli.progress_bars import counting_bar
from feddraw.cli.terminal import console, status_line
from feddraw.errors import unknown
from feddraw.text import safe_line

if TYPE_CHECKING:
    from feddraw.report import WrittenReport


def report(
    folders: Annotated[list[Path], Argument(help="Folders of runs or studies.", metavar="DIR...")],
    out: Annotated[
        Path | None, Option(help="Folder for the report (default: the first DIR).", metavar="DIR")
    ] = None,
    title: Annotated[str, Option(help="Title of the page.")] = "",
    alpha: Annotated[
        float | None,
        Option(
            help="Significance level of the tests over scenarios (0.05; with --preset paper 0.10)."
        ),
    ] = None,
    preset: Annotated[str, Option(help="paper: the paper's significance level.")] = "",
    replicates: Annotated[
        int, Option(help="Bootstrap replicates of paired differences; 0: none.")
    ] = 1000,
    margin: Annotated[
        float, Option(help="Non-inferiority margin, e.g. 0.01; 0: no such test.")
    ] = 0.0,
    decision_range: Annotated[
        str, Option(help="Threshold probabilities of the decision curves.", metavar="LOW-HIGH")
    ] = "0.01-0.5",
    checklist: Annotated[
        str,
        Option(
            help="Show where the report answers a reporting guideline: tripod-ai.", metavar="NAME"
        ),
    ] = "",
    pdf: Annotated[
        bool, Option("--pdf", help="Compile paper.tex, the paper's tables and figures; needs TeX.")
    ] = False,
    track: Annotated[
        bool, Option("--track", help="Add the page to what an experiment tracker has of the runs.")
    ] = False,
) -> None:
    """Write a report of all runs below the folders: HTML, Markdown, LaTeX tables, figures."""
    from feddraw.report import ReportSettings
    from feddraw.report.checklists import check_checklist
    from feddraw.report.settings import decision_range_of

    check_checklist(checklist)
    settings = ReportSettings(
        alpha=report_significance_level(preset) if alpha is None else alpha,
        replicates=replicates,
        margin=margin,
        decision_range=decision_range_of(decision_range),
        checklist=checklist,
    )
    written = write_and_show_report(folders, out, settings=settings, title=title, pdf=pdf)
    if track:
        show_report_to_trackers(written)


def report_significance_level(preset: str) -> float:
    """The significance level that goes with a preset; the paper's is 0.10."""
    if preset not in ("", "laptop", "paper"):
        raise unknown("presets", preset, ["laptop", "paper"])
    from feddraw.paper.published_tables import PAPER_ALPHA
    from feddraw.report import ReportSettings

    return PAPER_ALPHA if preset == "paper" else ReportSettings().alpha


def write_and_show_report(
    folders: Sequence[Path], out: Path | None = None, *, pdf: bool = False, **options: Any
) -> WrittenReport:
    """Write the report, with the options of `feddraw.report.write_report`, and show its main
    results; with `pdf`, compile its paper.tex, too.
    """
    from feddraw.report import write_pdf, write_report
    from feddraw.report.paper_tex import tex_program

    if pdf:
        tex_program()  # that there is none must not be found out when all is written
    # standard error: a long bootstrap says how far it is, and the output stays what is reported
    with counting_bar(console(stderr=True), prefix="report: ", announced=False) as show_progress:
        written = write_report(folders, out, progress=show_progress, **options)
    if pdf:
        with status_line("compiling paper.tex"):
            compiled = write_pdf(written)
    show_report(written)
    if pdf:
        console().print(f"the paper's tables: {compiled}")
    return written


def show_report(written: WrittenReport) -> None:
    """What was left out, the main results, and where the files are."""
    from feddraw.report.sections.caveats import uncounted_runs
    from feddraw.report.sections.summary import summary_sentences

    out = console()
    for problem in written.report.collection.problems:
        out.print(safe_line(f"left out: {problem.path}: {problem.reason}"))
    for sentence in uncounted_runs(written.report):
        out.print(safe_line(sentence))
    for sentence in summary_sentences(written.report):
        out.print(f"- {safe_line(sentence)}")
    out.print(f"report: {written.page}")
    others = [written.markdown, written.tables, written.paper, written.results]
    names = ", ".join(path.name for path in others if path is not None)
    out.print(f"also {names} and figures/ beside it")


def show_report_to_trackers(written: WrittenReport) -> None:
    """Add the page to what a tracker has of the report's runs (`track`)."""
    from feddraw.results.trackers import show_report as add_report

    shown = [add_report(run.path, [written.page]) for run in written.report.collection.runs]
    for name in sorted(set(filter(None, shown))):
        runs = shown.count(name)
        console().print(f"also in {name}, with {runs} run{'s' if runs > 1 else ''}")

"""`feddraw report`: one page about many runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feddraw import naming
from feddraw.errors import UserError, not_negative

if TYPE_CHECKING:
    from feddraw.report import Written

Option = typer.Option


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs or studies.", metavar="DIR...")],
    out: Annotated[Path | None, Option(help="Folder for the report (default: the first DIR).", metavar="DIR")] = None,
    title: Annotated[str, Option(help="Title of the page.")] = "",
    alpha: Annotated[float, Option(help="Significance level of the tests over scenarios.")] = 0.05,
    replicates: Annotated[int, Option(help="Bootstrap replicates of paired differences; 0: none.")] = 1000,
    margin: Annotated[float, Option(help="Non-inferiority margin, e.g. 0.01; 0: no such test.")] = 0.0,
) -> None:
    """Write an HTML report of all runs below the folders, also as Markdown, LaTeX tables and figures."""
    not_negative("replicates", replicates)
    if not 0 < alpha < 1:
        raise UserError(f"alpha must be between 0 and 1, not {alpha}")
    if not 0 <= margin < 1:
        raise UserError(f"margin must be from 0 to below 1, such as 0.01, not {margin}")
    from feddraw.cli.show import console, words
    from feddraw.report import write_report

    say = console()
    with say.status("reading") as status:
        written = write_report(
            folders,
            out,
            title=title,
            alpha=alpha,
            replicates=replicates,
            margin=margin,
            say=lambda now: status.update(words(now)),
        )
    show(written)


def show(written: Written) -> None:
    """What was left out, the main results, and where the files are."""
    from feddraw.cli.show import console
    from feddraw.report.content import main_results

    out = console()
    for problem in written.report.collection.problems:
        out.print(naming.line(f"left out: {problem.path}: {problem.reason}"))
    for sentence in main_results(written.report):
        out.print(f"- {naming.line(sentence)}")
    out.print(f"report: {written.page}")
    out.print(f"also {written.markdown.name}, {written.tables.name}, {written.results.name} and figures/ beside it")

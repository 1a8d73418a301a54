"""The command line: parse, call, show. A file a command; what is slow to import is imported by the command itself."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any

import click
import typer

from feddraw import naming
from feddraw.cli import (
    bench,
    data,
    demo,
    explain,
    explore,
    init,
    listing,
    operator,
    paper,
    report,
    run,
    scenario,
    site,
    stats,
    study,
    verify,
    weights,
)
from feddraw.errors import RunFailed, UserError

app = typer.Typer(
    name="feddraw",
    help="FedDRAW and its rivals: who counts how much when hospitals train one chest-radiograph model together.\n\n"
    "Research software, not a medical device.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("study")(study.study)
app.command("init")(init.init)
app.command("weights")(weights.weights)
app.command("explore")(explore.explore)
app.add_typer(scenario.app, name="scenario")
app.add_typer(data.app, name="data")
app.command("report")(report.report)
app.command("explain")(explain.explain)
app.command("stats")(stats.stats)
app.command("paper")(paper.paper)
app.command("verify")(verify.verify)
app.command("list")(listing.show)
app.command("bench")(bench.bench)
app.add_typer(operator.app, name="operator")
app.add_typer(site.app, name="site")


def _version(wanted: bool) -> None:
    if wanted:
        from feddraw import __version__

        typer.echo(f"feddraw {__version__}")
        raise typer.Exit


@app.callback()
def callback(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Every command explains itself with --help."""


INTERRUPTED = 130


def main() -> None:
    """Run a command; a mistake is one line and exit code 2."""
    warnings.showwarning = _one_line_warning
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # workers do not look for Python's own modules in the current folder
    try:
        code = app(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        help_wanted.show()
        code = 2
    except click.ClickException as mistake:
        code = _say(mistake.format_message(), 2)
    except UserError as mistake:
        code = _say(str(mistake), 2)
    except RunFailed as failure:
        code = _say(str(failure), 1)
    except (KeyboardInterrupt, click.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        code = 1  # whoever was reading has left
    if code == INTERRUPTED:  # also what typer makes of Ctrl-C
        _say("stopped; what was done is kept, go on with --resume", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str, code: int) -> int:
    print(f"feddraw: {naming.text(message)}", file=sys.stderr)
    return code


def _one_line_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {naming.text(str(message))}", file=sys.stderr)

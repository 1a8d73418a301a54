"""The command line: parse, call, show.

One file per command, which imports what is slow only when it runs.
"""

from __future__ import annotations

import errno
import inspect
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import click
import typer

from feddraw.text import safe_text

from feddraw.cli import (  # isort: skip
    check_method,
    compare,
    contribution,
    data,
    demo,
    doctor,
    explain,
    explore,
    export,
    heterogeneity,
    init,
    listing,
    operator,
    paper,
    predict,
    recalibrate,
    report,
    run,
    scenario,
    site,
    stats,
    study,
    verify,
    watch,
    weights,
)
from feddraw.errors import NoSuchPath, RunFailed, UserError

app = typer.Typer(
    name="feddraw",
    help=(
        "Federated learning with FedDRAW and other aggregation methods for chest radiographs.\n\n"
        "Research software, not a medical device."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (  # in the order of --help; a group has an app of its own
    demo.demo,
    run.run,
    compare.compare,
    study.study,
    init.init,
    weights.weights,
    heterogeneity.heterogeneity,
    contribution.contribution,
    explore.explore,
    scenario.app,
    data.app,
    report.report,
    watch.watch,
    explain.explain,
    recalibrate.recalibrate,
    predict.predict,
    export.export,
    stats.stats,
    paper.paper,
    verify.verify,
    listing.list_,
    check_method.check_method,
    doctor.doctor,
    operator.app,
    site.app,
)


def _help_of(callback: Callable[..., Any]) -> str:
    """A command's docstring with each paragraph on one line, which the terminal then wraps."""
    paragraphs = inspect.cleandoc(callback.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


for command in COMMANDS:
    if isinstance(command, typer.Typer):
        for member in command.registered_commands:
            assert member.callback is not None
            member.help = _help_of(member.callback)
        app.add_typer(command, name=command.info.name)
    else:
        name = command.__name__.removesuffix("_").replace("_", "-")
        app.command(name, help=_help_of(command))(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from feddraw import __version__

        typer.echo(f"feddraw {__version__}")
        raise typer.Exit


@app.callback()
def command_line_itself(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options of `feddraw` itself."""


# settings without an option in some commands, each with the value of an example
TYPED_AS_OPTIONS = {"--size": "data.size=28", "--rounds": "rounds=10", "--lr": "training.lr=0.001"}
INTERRUPTED = 130  # by Ctrl-C
TERMINATED = 143  # by SIGTERM, as shells and service managers call it
# For the commands that keep what was done.
ROUNDS_ARE_KEPT = "; any finished rounds are kept: continue with --resume"
WORK_IS_KEPT = "; finished work is kept: start again to continue"
AFTER_CTRL_C = {
    "run": ROUNDS_ARE_KEPT,
    "demo": ROUNDS_ARE_KEPT,
    "compare": WORK_IS_KEPT,
    "study": WORK_IS_KEPT,
    "contribution": WORK_IS_KEPT,
    "data prepare": WORK_IS_KEPT,
}


class StopAtSigterm:
    """A handler that ends the command as Ctrl-C does, so that workers and shared memory are left in
    order; a second SIGTERM kills at once.
    """

    def __init__(self) -> None:
        self.exit_code = INTERRUPTED
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # and not ignored
            signal.signal(signal.SIGTERM, self)

    def __call__(self, _number: int, _frame: FrameType | None) -> NoReturn:
        self.exit_code = TERMINATED
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    def remove(self) -> None:
        if signal.getsignal(signal.SIGTERM) is self:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def main() -> None:
    """Run a command; a mistake is one line and exit code 2."""
    stop = StopAtSigterm()
    warnings.showwarning = _one_line_warning
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path need not be text
    # Workers do not look for Python's own modules in the current folder.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    try:
        code = app(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        help_wanted.show()
        code = 2
    except click.ClickException as mistake:
        code = _print_error(_typing_mistake_in_words(mistake), 2)
    except UserError as mistake:
        code = _print_error(f"{mistake}{_where_looked_for(mistake, sys.argv[1:])}", 2)
    except RunFailed as failure:
        code = _print_error(str(failure), 1)
    except (KeyboardInterrupt, click.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        code = _drop_standard_output()  # whoever was reading has left
    except OSError as trouble:
        full = trouble.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
        file = _file_behind_error(trouble)
        reason = trouble.strerror or trouble
        code = _print_error(f"cannot use {file}: {reason}", 1 if full else 2)
    except UnicodeEncodeError as trouble:
        code = _print_error(
            f"{trouble.object!r} is not text in UTF-8: rename the file or folder"[:300], 2
        )
    except (MemoryError, RuntimeError) as trouble:
        if not isinstance(trouble, MemoryError) and "can't allocate memory" not in str(trouble):
            raise
        code = _print_error(
            "out of memory: use fewer workers, a smaller training.batch_size or a smaller"
            " data.size",
            1,
        )
    if code == INTERRUPTED:  # also what typer makes of Ctrl-C
        code = stop.exit_code
        _print_error(f"stopped{AFTER_CTRL_C.get(_typed_command(sys.argv[1:]), '')}", code)
    stop.remove()
    sys.exit(_exit_code_when_flushed(code if isinstance(code, int) else 0))


def _with_one_suggestion(message: str) -> str:
    """A message of click without the second "Did you mean": typer and click each add one."""
    first_suggestion = re.search(r"Did you mean [^?]*\?\)?", message)
    return message[: first_suggestion.end()] if first_suggestion else message


def _typing_mistake_in_words(mistake: click.ClickException) -> str:
    """What click says; of an unknown option also which command shows all that there are."""
    said = _with_one_suggestion(mistake.format_message())
    if isinstance(mistake, click.NoSuchOption) and mistake.ctx is not None:
        options = {name for option in mistake.ctx.command.params for name in option.opts}
        if mistake.option_name in TYPED_AS_OPTIONS and "--set" in options:
            setting = TYPED_AS_OPTIONS[mistake.option_name]
            said = f"No such option '{mistake.option_name}': it is a setting, --set {setting}."
        return f"{said} {mistake.ctx.command_path} --help shows all options."
    return said


def _where_looked_for(mistake: UserError, words: Sequence[str]) -> str:
    """From where a relative path was followed that leads nowhere, and whether it leads somewhere
    from an experiment file that was typed.
    """
    if not isinstance(mistake, NoSuchPath) or mistake.path.is_absolute():
        return ""
    looked = f" (looked for in {Path.cwd()}, where the command was typed"
    for word in words:
        beside = Path(word).parent / mistake.path
        if word.endswith(".toml") and beside.exists():
            return (
                f"{looked}; it lies beside {word}: write {beside} in that file, or type the command"
                f" in {Path(word).parent})"
            )
    return f"{looked})"


def _typed_command(words: Sequence[str]) -> str:
    """The command that was typed, with its group if it has one."""
    names = [word for word in words if not word.startswith("-")]
    groups = {group.name for group in app.registered_groups}
    return " ".join(names[: 2 if names and names[0] in groups else 1])


def _file_behind_error(trouble: OSError) -> str:
    """The file behind an error, with a long name shortened; without a name it is standard
    output.
    """
    name = "the output" if trouble.filename is None else str(trouble.filename)
    return name if len(name) <= 100 else f"{name[:50]}…{name[-20:]}"


def _exit_code_when_flushed(code: int) -> int:
    """The exit code, when all output is where it was sent to."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return code or _drop_standard_output()
    except OSError as trouble:
        _drop_standard_output()
        return code or _print_error(f"cannot write the output: {trouble.strerror}", 1)
    return code


def _drop_standard_output() -> int:
    """What is still to be written leads nowhere, or Python would complain about it at the
    very end.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return 1


def _print_error(message: str, code: int) -> int:
    print(f"feddraw: {safe_text(message)}", file=sys.stderr)
    return code


def _one_line_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {safe_text(str(message))}", file=sys.stderr)

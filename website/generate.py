"""Pages of the site that are made from other files: the commands with their options, the explorer, the changelog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import typer

from feddraw import explorer
from feddraw.cli import app
from website import catalogue

DOCS = Path(__file__).parent.parent / "docs"


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, groups before their members."""
    yield name, command
    for short, member in getattr(command, "commands", {}).items():
        yield from commands(member, f"{name} {short}")


def cli_page() -> str:
    """The commands, each with its arguments and options."""
    lines = ["# Commands", "", "Made from the commands' own `--help`."]
    for name, command in commands(typer.main.get_command(app), "feddraw"):
        lines += ["", f"## {name}", "", *description(name, command)]
    return "\n".join(lines) + "\n"


def description(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    pieces = " ".join(command.collect_usage_pieces(context))
    yield from ("```text", f"{name} {pieces}", "```", "", plain(command.help or ""), "")
    parameters = [one for one in command.params if one.name not in ("help", "install_completion", "show_completion")]
    if parameters:
        yield from ("| | default | |", "|---|---|---|", *(row(one, context) for one in parameters))


def row(parameter: click.Parameter, context: click.Context) -> str:
    """An argument or option: how it is written, what it is without being given, what it does."""
    written = " / ".join([*parameter.opts, *parameter.secondary_opts])
    if isinstance(parameter, click.Argument):
        written = parameter.make_metavar(context)
    default = parameter.get_default(context)
    silent = default is None or default is False or default == ""
    shown = "" if silent else f"`{default}`"
    shown = "required" if parameter.required else shown
    return f"| `{written.strip('[]')}` | {shown} | {plain(getattr(parameter, 'help', None) or '')} |"


def plain(text: str) -> str:
    return text.replace("|", "\\|").strip()


def main() -> None:
    reference = DOCS / "reference"
    reference.mkdir(exist_ok=True)
    (reference / "cli.md").write_text(cli_page(), encoding="utf-8")
    catalogue.main()
    (DOCS / "weight-explorer.html").write_text(explorer.page(), encoding="utf-8")
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        (DOCS / name.lower()).write_text((DOCS.parent / name).read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main()

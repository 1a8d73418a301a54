"""Pages of the site that are made from other files: the commands, the settings, the explorer, the
changelog.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import typer

from feddraw import explorer
from feddraw.cli import app
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.settings import SETTINGS_SECTIONS, Experiment
from feddraw.system.file_writing import toml_values as plain_values
from website import catalogue

DOCS = Path(__file__).parent.parent / "docs"
LISTS = {"scenario": "scenarios", "model": "models", "method": "methods"}


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
    yield from ("```text", f"{name} {pieces}", "```", "", toml_values(command.help or ""), "")
    parameters = [
        one
        for one in command.params
        if one.name not in ("help", "install_completion", "show_completion")
    ]
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
    return (
        f"| `{written.strip('[]')}` | {shown} |"
        f" {toml_values(getattr(parameter, 'help', None) or '')} |"
    )


def toml_values(text: str) -> str:
    return text.replace("|", "\\|").strip()


def settings_page() -> str:
    """Every setting of a plain run with its default, and the comment that stands beside it in the
    code.
    """
    table = plain_values(complete_settings(Experiment()).table())
    remarks = {
        "": remarks_of(Experiment),
        **{name: remarks_of(kind) for name, kind in SETTINGS_SECTIONS.items()},
    }
    lines = [
        "# Settings",
        "",
        "The settings of a plain `feddraw run`, as its `experiment.toml` holds them.",
    ]
    lines += [
        "`--set KEY=VALUE` changes one; a wrong name is refused with the nearest right one.",
        "",
        "```toml",
    ]
    lines += [
        assignment(name, value, remarks[""])
        for name, value in table.items()
        if not isinstance(value, dict)
    ]
    for section, values in table.items():
        if isinstance(values, dict):
            heading = f"[{section}]".ljust(31)
            hint = f" # feddraw list {LISTS[section]}" if section in LISTS else ""
            lines += ["", (heading + hint).rstrip()]
            lines += [
                assignment(name, value, remarks.get(section, {})) for name, value in values.items()
            ]
    return "\n".join([*lines, "```", ""])


def remarks_of(kind: type) -> dict[str, str]:
    """The comment behind each field of a dataclass."""
    found = re.findall(
        r"^    (\w+): [^\n]*?  # ([^\n]+)$", inspect.getsource(kind), flags=re.MULTILINE
    )
    return dict(found)


def assignment(name: str, value: object, remarks: Mapping[str, str]) -> str:
    line = f"{name} = {json.dumps(value)}"
    return f"{line:31} # {remarks[name]}" if name in remarks else line


def main() -> None:
    reference = DOCS / "reference"
    reference.mkdir(exist_ok=True)
    (reference / "cli.md").write_text(cli_page(), encoding="utf-8")
    catalogue.main()
    (reference / "settings.md").write_text(settings_page(), encoding="utf-8")
    (DOCS / "weight-explorer.html").write_text(explorer.explorer_page(), encoding="utf-8")
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        text = (
            (DOCS.parent / name).read_text(encoding="utf-8").replace("](docs/", "](")
        )  # the site's own pages
        (DOCS / name.lower()).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""What an operator sets: the run's settings (`[tool.flwr.app.config]`, `--run-config`) and a node's (`--node-config`).

The run's are those of `Experiment`, by their dotted paths in `experiment.toml`, and a few of the federation's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from feddraw.catalog import check
from feddraw.cli.run import parse_settings
from feddraw.errors import UserError
from feddraw.experiment import NAMED, Experiment, complete
from feddraw.participation import Participation


@dataclass(frozen=True)
class Federation:
    """What a federation has beyond an experiment."""

    out: str = ""  # the run's folder on the server
    resume: bool = False
    nodes: int = 2  # fewest to begin a round with
    fraction: float = 1.0  # share of the nodes that is asked in a round
    wait: float = 600.0  # seconds for so many to connect
    timeout: float = 3600.0  # seconds for a round's replies
    size_cap: float = 0.0  # largest size that counts, in medians of the sites'; 0: no cap
    validation: str = ""  # a folder of images on the server, for sites with folders of their own
    set: str = ""  # more settings, KEY=VALUE with blanks between
    trust: bool = False  # import code that the settings name


def read(run_config: Mapping[str, Any]) -> tuple[Experiment, Federation]:
    """The experiment and the federation that a run's settings describe; an empty text leaves a setting as it is."""
    given = {name: value for name, value in run_config.items() if value != ""}
    defaults = {field.name: field.default for field in fields(Federation)}
    own = {name: given.pop(name) for name in defaults if name in given}
    check(own, defaults, "")
    federation = Federation(**own)
    experiment = Experiment.of(_nested(given)).with_settings(parse_settings(federation.set.split()))
    if experiment.participation != Participation():
        raise UserError("who takes part is the federation's to say: set fraction, and leave participation as it is")
    return complete(experiment), federation


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for path, value in settings.items():
        section, _, name = path.partition(".")
        if not name:
            table[section] = value
        else:
            table.setdefault(section, {})[name] = value.split(",") if name == "findings" and "," in value else value
    return table


def refuse_code(experiment: Experiment, trust: bool) -> None:
    """Settings come from another machine: code that they name is imported only where somebody here allows it."""
    for section in NAMED:
        name = experiment.section(section)[0]
        if ":" in name and not trust:
            raise UserError(f"the run's settings name code to import ({section} = {name}): allow it with trust=true")


def own_folders(experiment: Experiment) -> bool:
    """Whether each site reads a folder of its own; else all deal the same data set by the scenario."""
    return experiment.section("data")[0] == "folder"


def findings(experiment: Experiment) -> list[str]:
    """The classes of sites with folders of their own: named, so that all mean the same."""
    named = experiment.section("data")[1].get("findings", "all")
    if not isinstance(named, list):
        raise UserError("sites with folders of their own need data.findings: the names of their columns, with commas")
    return named

"""What an operator sets: the run's settings (`[tool.flwr.app.config]`, `--run-config`) and a node's
(`--node-config`).

The run's are those of `Experiment`, by their dotted paths in `experiment.toml`, and a few of the
federation's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from feddraw.catalog import check_setting_types
from feddraw.core import why_no_policy
from feddraw.core.participation import Participation
from feddraw.data.corruption import Corruption
from feddraw.data.finding_names import PAPER_FINDINGS, canonical_finding
from feddraw.errors import UserError
from feddraw.experiment.settings import (
    NAMED_SECTIONS,
    Experiment,
    complete,
    make_method,
    parse_settings,
)
from feddraw.server.policy import Policy


@dataclass(frozen=True)
class FlowerSettings:
    """What a federation has beyond an experiment."""

    out: str = ""  # the run's folder on the server
    resume: bool = False
    # fewest to begin a round with; 0: the scenario's clients, or 2 sites with folders of their own
    nodes: int = 0
    fraction: float = 1.0  # share of the nodes that is asked in a round
    wait: float = 600.0  # seconds for so many to connect
    timeout: float = 3600.0  # seconds for a round's replies
    size_cap: float = 0.0  # another name for policy.max_size_times
    # NAME=FINGERPRINT of each site's key, with commas; empty: a name belongs to who comes first
    sites: str = ""
    rebind: bool = (
        False  # with resume: names belong to whoever answers under them first from now on
    )
    validation: str = ""  # a folder of images on the server, for sites with folders of their own
    site_keys: str = (
        ""  # with secure: a file of the sites' public keys, to refuse forged messages here already
    )
    set: str = ""  # more settings, KEY=VALUE with blanks between


# Unless the settings have a policy of their own: from three sites on, none outweighs all others.
READY_POLICY = Policy(cap_times=1.5)

TRUST_VARIABLE = (  # set to 1 in the server's environment: import code that a run's settings name
    "FEDDRAW_TRUST"
)
AT_THE_SERVER = f"start the server with {TRUST_VARIABLE}=1 in its environment if you trust them"
AT_A_SITE = "start the node with trust=true in its --node-config if you trust them"


def trusted_here() -> bool:
    """Whether the server's operator allows code; a run's settings cannot say so of themselves."""
    return os.environ.get(TRUST_VARIABLE) == "1"


def read_run_config(
    run_config: Mapping[str, Any], *, trust: bool = False, permit: str = AT_THE_SERVER
) -> tuple[Experiment, FlowerSettings]:
    """The experiment and the federation that a run's settings describe; an empty text leaves a
    setting as it is.

    The settings come from another machine or from a file: code that they name is refused before
    anything is imported, unless this machine's own operator trusts them.
    """
    given = {name: value for name, value in run_config.items() if value != ""}
    if given.pop("trust", False):
        raise UserError(
            f"a run's settings cannot ask for trust: {AT_THE_SERVER}; at sites, {AT_A_SITE}"
        )
    defaults = {field.name: field.default for field in fields(FlowerSettings)}
    own = {name: given.pop(name) for name in defaults if name in given}
    check_setting_types(own, defaults, "")
    federation = FlowerSettings(**own)
    more = parse_settings(federation.set.split())
    experiment = Experiment.of(_run_config_by_section(given)).with_settings(more)
    experiment.trusted(trust, "the run's settings name", permit)
    if experiment.participation != Participation():
        raise UserError(
            "Flower chooses the clients: set fraction, and remove the participation settings"
        )
    if experiment.corruption != Corruption() and own_folders(experiment):
        raise UserError(
            "corruption does not work for sites with their own folders: remove the corruption"
            " settings"
        )
    if not any(name.startswith("policy.") for name in (*given, *more)) and not why_no_policy(
        make_method(experiment)
    ):
        experiment = replace(experiment, policy=READY_POLICY)
    return complete(experiment), federation


read = (
    read_run_config  # its name before, for scripts made after examples/flower/local_federation.py
)


def _run_config_by_section(settings: Mapping[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for path, value in settings.items():
        section, _, name = path.partition(".")
        if not name and section in NAMED_SECTIONS:
            table.setdefault(section, {})["name"] = value
        elif not name:
            table[section] = value
        else:
            several = path == "data.findings" and isinstance(value, str) and "," in value
            table.setdefault(section, {})[name] = value.split(",") if several else value
    return table


def own_folders(experiment: Experiment) -> bool:
    """Whether each site reads its own folder; otherwise all split the same data set by the
    scenario.
    """
    return experiment.section("data")[0] == "folder"


def findings_of_own_folders(experiment: Experiment) -> list[str]:
    """The findings of sites with their own folders: named, so that all sites mean the same."""
    named = experiment.section("data")[1].get("findings", "all")
    listed = named.split(",") if isinstance(named, str) and named != "all" else named
    if not isinstance(listed, list) or not all(
        isinstance(name, str) and name.strip() for name in listed
    ):
        wanted = "list the names of the label columns, separated by commas"
        raise UserError(f"sites with folders of their own need data.findings: {wanted}")
    return (
        list(PAPER_FINDINGS)
        if listed == ["paper"]
        else [canonical_finding(name) for name in listed]
    )

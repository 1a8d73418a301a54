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
from feddraw.core import Method, weights_show_updates, why_no_policy
from feddraw.core.participation import Participation
from feddraw.data.class_column import chosen_classes
from feddraw.data.corruption import Corruption
from feddraw.data.finding_names import PAPER_FINDINGS
from feddraw.data.subgroups import SubgroupColumn, read_subgroup_columns
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.settings import NAMED_SECTIONS, Experiment, make_method, parse_settings
from feddraw.server.policy import Policy


@dataclass(frozen=True)
class FlowerSettings:
    """What a federation has beyond an experiment."""

    out: str = ""  # the run's folder on the server
    resume: bool = False
    # fewest to begin a round with; 0: the scenario's clients, or all that `sites` lists, at least 2
    nodes: int = 0
    fraction: float = 1.0  # share of the nodes that is asked in a round
    wait: float = 600.0  # seconds for so many to connect
    timeout: float = 3600.0  # seconds for a round's replies
    # NAME=FINGERPRINT of each site's key, with commas; empty: a name belongs to who comes first
    sites: str = ""
    # with resume: names belong to whoever answers under them first from now on
    rebind: bool = False
    validation: str = ""  # a folder of images on the server, for sites with folders of their own
    # with secure: a file of the sites' public keys, to refuse forged messages here already
    site_keys: str = ""
    set: str = ""  # more settings, KEY=VALUE with blanks between


# Unless the settings have a policy of their own: from three sites on, none outweighs all others.
READY_POLICY = Policy(cap_times=1.5)
# The same as far as it can be had where weights are hidden: no size counts for more than that.
READY_SIZE_POLICY = Policy(max_size_times=1.5)

# set to 1 in the server's environment: import code that a run's settings name
TRUST_VARIABLE = "FEDDRAW_TRUST"
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
    values = {name: value for name, value in run_config.items() if value != ""}
    if values.pop("trust", False):
        raise UserError(
            f"a run's settings cannot ask for trust: {AT_THE_SERVER}; at sites, {AT_A_SITE}"
        )
    federation = _take_federation(values)
    more = parse_settings(federation.set.split())
    experiment = Experiment.of(_by_section(values)).with_settings(more)
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
    training = experiment.training
    if training.work == "steps" and not training.steps and own_folders(experiment):
        raise UserError(
            "training.work = 'steps' needs training.steps for sites with their own folders: nobody"
            " knows all their sizes beforehand"
        )
    # a least number of sites does not say how much each may count
    limits = [name for name in (*values, *more) if name != "policy.min_sites"]
    policy_is_set = any(name.startswith("policy.") for name in limits)
    if not policy_is_set:
        policy = replace(_ready_policy(experiment), min_sites=experiment.policy.min_sites)
        experiment = replace(experiment, policy=policy)
    return complete_settings(experiment), federation


def hides_weights(experiment: Experiment, method: Method) -> bool:
    """Whether the server of a run does not see the sites' weights."""
    return experiment.secure and weights_show_updates(method) and not experiment.clear_weights


def _ready_policy(experiment: Experiment) -> Policy:
    """The policy of a run whose settings name none."""
    method = make_method(experiment)
    if hides_weights(experiment, method):
        return READY_SIZE_POLICY
    return Policy() if why_no_policy(method) else READY_POLICY


def _take_federation(values: dict[str, Any]) -> FlowerSettings:
    """The federation's own settings, which are removed from the others."""
    defaults = {field.name: field.default for field in fields(FlowerSettings)}
    own_values = {name: values.pop(name) for name in defaults if name in values}
    check_setting_types(own_values, defaults, "")
    return FlowerSettings(**own_values)


def _by_section(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted paths as the tables of `experiment.toml`."""
    table: dict[str, Any] = {}
    for path, value in settings.items():
        section, _, name = path.partition(".")
        if not name and section in NAMED_SECTIONS:
            table.setdefault(section, {})["name"] = value
        elif not name:
            table[section] = value
        elif path in ("data.findings", "data.classes") and isinstance(value, str) and "," in value:
            table.setdefault(section, {})[name] = value.split(",")
        else:
            table.setdefault(section, {})[name] = value
    return table


def own_folders(experiment: Experiment) -> bool:
    """Whether each site reads its own folder; otherwise all split the same data set by the
    scenario.
    """
    return experiment.section("data")[0] == "folder"


def subgroups_of_own_folders(experiment: Experiment) -> tuple[SubgroupColumn, ...]:
    """The subgroups that sites with their own folders count, which all must mean the same by; none
    under secure sums, as the sum would be one site's own counts where the others leave a subgroup
    out.
    """
    columns = read_subgroup_columns(experiment.section("data")[1].get("subgroups", ""))
    if experiment.secure:
        return ()
    for column in columns:
        if not column.agreed:
            raise UserError(
                f"sites with folders of their own must mean the same by {column.name}: name its"
                f' values, such as data.subgroups = "sex: F, M", or where bands of numbers begin'
            )
    return columns


def findings_of_own_folders(experiment: Experiment) -> list[str]:
    """The findings of sites with their own folders: named, so that all sites mean the same.

    They are called as the operator spells them; each site's table may spell them in another way.
    """
    data = experiment.section("data")[1]
    if data.get("class_column"):
        return list(_classes_of_own_folders(data.get("classes", "all")))
    findings = data.get("findings", "all")
    if isinstance(findings, str) and findings != "all":
        findings = findings.split(",")
    named = isinstance(findings, list) and all(
        isinstance(name, str) and name.strip() for name in findings
    )
    if not named:
        raise UserError(
            "sites with folders of their own need data.findings: list the names of the label"
            " columns, separated by commas"
        )
    if findings == ["paper"]:
        return list(PAPER_FINDINGS)
    return [name.strip() for name in findings]


def _classes_of_own_folders(classes: object) -> tuple[str, ...]:
    """The classes of sites whose tables name the class of each image; as they are listed, so that
    all sites mean the same outputs.
    """
    if classes == "all" or not isinstance(classes, str | list):
        raise UserError(
            "sites with folders of their own need data.classes: list the classes of the column"
            " data.class_column, separated by commas"
        )
    return chosen_classes("", classes, ()).classes

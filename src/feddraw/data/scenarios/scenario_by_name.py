"""Scenarios by name: ways to split a data set's training images among clients.

The paper's twelve are in `paper_scenarios.py`; every other file with a function of its own name
that takes a pool of images is a way of the field's (`iid`, `dirichlet`, …). An index list
(`NAME.json`) is a scenario, too, and so is anyone's own `package.module:function`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from feddraw import catalog
from feddraw.data.dataset import Labels
from feddraw.data.scenarios import constructions
from feddraw.data.scenarios.image_pool import shuffled_pool
from feddraw.data.scenarios.index_list import client_image_names, read_index_list, sha256_of_names
from feddraw.data.scenarios.paper_scenarios import PAPER_SCENARIOS, PaperScenario, paper_scenario
from feddraw.data.scenarios.partition import ClientRows, Partition, Rows, Shard, numbered_clients
from feddraw.errors import UserError, not_negative, one_of, positive, unknown
from feddraw.system.file_reading import expanded_path


def make_partition(
    name: str, labels: Labels, *, seed: int, scale: float = 1.0, options: Mapping[str, object] = {}
) -> Partition:
    """Split the images that the labels describe among clients: disjoint, in exact sizes, the same
    for the same seed.

    `patient_disjoint` among the options keeps all images of a patient at one client (or out of the
    federation). The paper's scenarios, iid, quantity and by_site keep their sizes and quotas exact
    then, or say that they cannot; dirichlet and shards split patients in place of images.

    A name `package.module:function` is code that runs: who takes it from a file must have asked the
    user first.
    """
    catalog.check_setting_types(
        {"seed": seed, "scale": scale}, {"seed": 0, "scale": 1.0}, "scenario"
    )
    not_negative("seed", seed)
    positive("scale", scale)
    if name.endswith(".json"):
        if superfluous := [option for option, value in options.items() if value]:
            raise UserError(
                f"{name} lists the images of each client: leave {', '.join(superfluous)} out"
            )
        scenario, clients = read_index_list(expanded_path(name), labels, scale)
        return _checked_partition(scenario, clients, labels)
    if ":" in name:
        clients = _clients_by_function(name, labels, seed, scale, options)
        return _checked_partition(name, clients, labels)
    if (plan := paper_scenario(name, scale)) is not None:
        return _paper_partition(plan, labels, seed, options)
    scenario = _known_scenario(name)
    rule = _usual_scenarios()[scenario]
    patient_disjoint, settings = _with_defaults(options, rule, scenario)
    pool = shuffled_pool(labels, seed, patient_disjoint)
    return _checked_partition(scenario, rule(pool, scale, **settings), labels)


def _paper_partition(
    plan: PaperScenario, labels: Labels, seed: int, options: Mapping[str, object]
) -> Partition:
    rules = _constructions_of(plan)
    settings = dict(options)
    construction = next(iter(rules))
    owner = plan.name
    if len(rules) > 1:
        chosen = settings.pop("construction", construction)
        construction = str(one_of("construction", chosen, list(rules)))
        owner = f"{plan.name} with construction {construction}"
    rule = rules[construction]
    patient_disjoint, settings = _with_defaults(settings, rule, owner, plan)
    pool = shuffled_pool(labels, seed, patient_disjoint)
    plan.require(len(pool))
    clients = rule(pool, plan, **settings)
    assert [len(rows) for rows in clients] == list(plan.sizes)
    return _checked_partition(plan.name, numbered_clients(clients), labels)


def _checked_partition(scenario: str, clients: ClientRows, labels: Labels) -> Partition:
    """Rows in order, the hash taken; refuses clients with too few images, or with the same."""
    if not clients:
        raise UserError(f"{scenario} has no clients")
    for client, rows in clients.items():
        if len(rows) < 2:
            few = "1 image" if len(rows) else "no image"
            raise UserError(
                f"{scenario} leaves {client} {few}, and a client needs two or more to train: use"
                " more data"
            )
    everything = np.concatenate(list(clients.values()))
    if repeated := len(everything) - len(np.unique(everything)):
        raise UserError(
            f"{scenario} gives {repeated:,} images more than once: clients must be disjoint"
        )
    shards = tuple(Shard(client, np.sort(rows)) for client, rows in clients.items())
    return Partition(scenario, shards, sha256_of_names(client_image_names(clients, labels)))


# ------------------------------------------------------------------------------ names and options


def scenario_names() -> list[str]:
    """Every scenario there is: the paper's, then the field's usual ones."""
    return [scenario.name for scenario in PAPER_SCENARIOS.values()] + list(_usual_scenarios())


def describe_scenario(name: str) -> str:
    """What a scenario does, in a line."""
    if (scenario := paper_scenario(name)) is not None:
        return scenario.description
    return catalog.first_doc_line("scenarios", _known_scenario(name))


def scenario_options(name: str) -> dict[str, Any]:
    """The options of a scenario with their defaults, those of all its constructions."""
    scenario = paper_scenario(name)
    options: dict[str, Any] = {}
    if scenario is None:
        options |= default_options(_usual_scenarios()[_known_scenario(name)])
    else:
        rules = _constructions_of(scenario)
        if len(rules) > 1:
            options["construction"] = next(iter(rules))
        for rule in rules.values():
            options |= default_options(rule, scenario)
    return {**options, "patient_disjoint": False}


def complete_scenario_options(name: str, options: Mapping[str, object]) -> dict[str, Any]:
    """The options given, and the defaults of the others that apply; none are known for a user's own
    scenario.
    """
    if name.endswith(".json") or ":" in name:
        return dict(options)
    known = scenario_options(name)
    scenario = paper_scenario(name)
    if scenario and "construction" in known:
        construction = str(options.get("construction", known["construction"]))
        rule = _constructions_of(scenario).get(construction)
        # a wrong construction is refused when the partition is made
        of_rule = default_options(rule, scenario) if rule else {}
        known = {"construction": construction, **of_rule, "patient_disjoint": False}
    defaults = {key: value for key, value in known.items() if value is not None}
    return {**defaults, **options}


def known_client_sizes(name: str, scale: float) -> tuple[str, tuple[int, ...]]:
    """A scenario's name and client sizes, where they do not depend on the data."""
    if (scenario := paper_scenario(name, scale)) is not None:
        return scenario.name, scenario.sizes
    if not name.endswith(".json") and ":" not in name:
        _known_scenario(name)
    raise UserError(f"the clients of {name} depend on the data: add --labels FILE")


def default_options(
    rule: Callable[..., Any], scenario: PaperScenario | None = None
) -> dict[str, Any]:
    """The options of a rule: its keyword arguments; those without a default have the scenario's
    own.
    """
    options: dict[str, Any] = {}
    for parameter in inspect.signature(rule).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        if parameter.default is parameter.empty:
            options[parameter.name] = getattr(scenario, parameter.name)
        else:
            options[parameter.name] = parameter.default
    return options


def _with_defaults(
    options: Mapping[str, object],
    rule: Callable[..., Any],
    owner: str,
    scenario: PaperScenario | None = None,
) -> tuple[bool, dict[str, Any]]:
    """Whether patients stay together, and all other options with their defaults."""
    known = {**default_options(rule, scenario), "patient_disjoint": False}
    catalog.check_setting_types(options, known, owner)
    settings = known | dict(options)
    return settings.pop("patient_disjoint"), settings


@cache
def _usual_scenarios() -> dict[str, Callable[..., ClientRows]]:
    """The field's usual partitions by name: files here whose function of the same name takes a
    pool of images.
    """
    return {
        name: rule
        for name, rule in catalog.functions_of_kind("scenarios").items()
        if "pool" in inspect.signature(rule).parameters
    }


def _known_scenario(name: str) -> str:
    """The scenario's name as it is written here."""
    if name.lower() not in _usual_scenarios():
        raise unknown("scenarios", name, scenario_names())
    return name.lower()


def _constructions_of(scenario: PaperScenario) -> dict[str, Callable[..., list[Rows]]]:
    """Ways to fill the clients: a choice where the paper gives their sizes only."""
    if scenario.enriched:
        return {"quota": constructions.by_quota}
    if scenario.small:
        return constructions.CONSTRUCTIONS
    return {"random": constructions.at_random}


# --------------------------------------------------------------------------------- anyone's own


def _clients_by_function(
    name: str, labels: Labels, seed: int, scale: float, options: Mapping[str, object]
) -> ClientRows:
    """What function(labels, seed, scale, **options) returns, checked.

    That is a Partition, a mapping of client names to row numbers, or a sequence of them (then C1,
    C2, …).
    """
    function = catalog.own_function(name)
    try:
        call = inspect.signature(function).bind(labels, seed, scale, **options)
    except TypeError as problem:
        raise UserError(
            f"{name} is called with (labels, seed, scale, **options): {problem}"
        ) from None
    clients = _named_clients(function(*call.args, **call.kwargs), name)
    return {
        str(client): _checked_rows(rows, len(labels), f"{name}, client {client}")
        for client, rows in clients.items()
    }


def _named_clients(returned: Any, name: str) -> Mapping[Any, Any]:
    if (shards := getattr(returned, "shards", None)) is not None:
        return {shard.client: shard.rows for shard in shards}
    if isinstance(returned, Mapping):
        return returned
    try:
        return numbered_clients(list(returned))
    except TypeError:
        raise UserError(
            f"{name} must return a list of row numbers per client, not {type(returned).__name__}"
        ) from None


def _checked_rows(rows: Any, images: int, whose: str) -> Rows:
    try:
        array = np.asarray(rows)
    except ValueError:  # lists of unequal length
        array = np.empty((0, 0))
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise UserError(f"{whose}: row numbers must be a one-dimensional list of whole numbers")
    if array.size and not 0 <= array.min() <= array.max() < images:
        raise UserError(f"{whose}: row numbers must lie between 0 and {images - 1:,}")
    return array.astype(np.intp)

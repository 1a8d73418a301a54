"""Scenarios: ways to deal a data set's training images to clients.

The paper's twelve are in `paper_scenarios.py`; every other file with a function of its own name
that takes a deck is a way of the field's (`iid`, `dirichlet`, …). An index list (`NAME.json`) and
`package.module:function` are, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from feddraw import catalog
from feddraw.data.dataset import Labels
from feddraw.data.scenarios import index_list
from feddraw.data.scenarios.constructions import (
    CONSTRUCTIONS,
    construct_at_random,
    construct_by_quota,
)
from feddraw.data.scenarios.image_deck import shuffled_deck
from feddraw.data.scenarios.own_scenario import deal_own_scenario
from feddraw.data.scenarios.paper_scenarios import PAPER_SCENARIOS, PaperScenario, paper_scenario
from feddraw.data.scenarios.partition import ClientRows, Partition, Rows, Shard, numbered_clients
from feddraw.errors import UserError, not_negative, one_of, positive, unknown
from feddraw.system.file_reading import expanded_path


def deal(
    name: str, labels: Labels, *, seed: int, scale: float = 1.0, options: Mapping[str, object] = {}
) -> Partition:
    """Deal the images that the labels describe to clients: disjoint, in exact sizes, the same for
    the same seed.

    `patient_disjoint` among the options keeps all images of a patient at one client (or out of the
    federation). The paper's scenarios, iid, quantity and by_site keep their sizes and quotas exact
    then, or say that they cannot; dirichlet and shards deal patients in place of images.
    """
    catalog.check_setting_types(
        {"seed": seed, "scale": scale}, {"seed": 0, "scale": 1.0}, "scenario"
    )
    not_negative("seed", seed)
    positive("scale", scale)
    if name.endswith(".json"):
        if given := [option for option, value in options.items() if value]:
            raise UserError(f"{name} lists the images of each client: leave {', '.join(given)} out")
        return _checked_partition(
            *index_list.read_index_list(expanded_path(name), labels, scale), labels
        )
    if ":" in name:
        return _checked_partition(
            name, deal_own_scenario(name, labels, seed, scale, options), labels
        )
    if (scenario := paper_scenario(name, scale)) is not None:
        return _deal_paper_scenario(scenario, labels, seed, options)
    known = _known_scenario(name)
    rule = _usual_scenarios()[known]
    patient_disjoint, settled = _with_default_options(options, rule, known)
    deck = shuffled_deck(labels, seed, patient_disjoint)
    return _checked_partition(known, rule(deck, scale, **settled), labels)


def scenario_names() -> list[str]:
    """Every scenario there is: the paper's, then the field's usual ones."""
    return [scenario.name for scenario in PAPER_SCENARIOS.values()] + list(_usual_scenarios())


def describe_scenario(name: str) -> str:
    """What a scenario does, in a line."""
    scenario = paper_scenario(name)
    return (
        scenario.description
        if scenario
        else catalog.first_doc_line("scenarios", _known_scenario(name))
    )


def scenario_options(name: str) -> dict[str, Any]:
    """The options of a scenario with their defaults, those of all its constructions."""
    if (scenario := paper_scenario(name)) is None:
        return {
            **default_scenario_options(_usual_scenarios()[_known_scenario(name)]),
            "patient_disjoint": False,
        }
    rules = _constructions_of(scenario)
    own = {} if len(rules) == 1 else {"construction": next(iter(rules))}
    for rule in rules.values():
        own |= default_scenario_options(rule, scenario)
    return {**own, "patient_disjoint": False}


def complete_scenario_options(name: str, options: Mapping[str, object]) -> dict[str, Any]:
    """The options given, and the defaults of the others that apply; none are known for a user's own
    scenario.
    """
    if name.endswith(".json") or ":" in name:
        return dict(options)
    known, scenario = scenario_options(name), paper_scenario(name)
    if scenario and "construction" in known:
        chosen = str(options.get("construction", known["construction"]))
        rule = _constructions_of(scenario).get(chosen)
        own = (
            default_scenario_options(rule, scenario) if rule else {}
        )  # a wrong one is refused when it deals
        known = {"construction": chosen, **own, "patient_disjoint": False}
    return {**{key: value for key, value in known.items() if value is not None}, **options}


def known_client_sizes(name: str, scale: float) -> tuple[str, tuple[int, ...]]:
    """A scenario's name and client sizes, where they do not depend on the data."""
    if (scenario := paper_scenario(name, scale)) is not None:
        return scenario.name, scenario.sizes
    if not name.endswith(".json") and ":" not in name:
        _known_scenario(name)
    raise UserError(f"the clients of {name} depend on the data: add --labels FILE")


def default_scenario_options(
    rule: Callable[..., Any], scenario: PaperScenario | None = None
) -> dict[str, Any]:
    """The options of a rule: its keyword arguments; those without a default have the scenario's
    own.
    """
    parameters = [
        p for p in inspect.signature(rule).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    return {
        p.name: getattr(scenario, p.name) if p.default is p.empty else p.default for p in parameters
    }


@cache
def _usual_scenarios() -> dict[str, Callable[..., ClientRows]]:
    """The field's usual partitions by name: files here whose function of the same name takes a
    deck.
    """
    found = catalog.functions_of_kind("scenarios")
    return {
        name: rule for name, rule in found.items() if "deck" in inspect.signature(rule).parameters
    }


def _known_scenario(name: str) -> str:
    """The scenario's name as it is written here."""
    if name.lower() not in _usual_scenarios():
        raise unknown("scenarios", name, scenario_names())
    return name.lower()


def _constructions_of(scenario: PaperScenario) -> dict[str, Callable[..., list[Rows]]]:
    """Ways to fill the clients: a choice where the paper gives their sizes only."""
    if scenario.enriched:
        return {"quota": construct_by_quota}
    return CONSTRUCTIONS if scenario.small else {"random": construct_at_random}


def _with_default_options(
    options: Mapping[str, object],
    rule: Callable[..., Any],
    owner: str,
    scenario: PaperScenario | None = None,
) -> tuple[bool, dict[str, Any]]:
    """Whether patients stay together, and all other options with their defaults."""
    known = {**default_scenario_options(rule, scenario), "patient_disjoint": False}
    catalog.check_setting_types(options, known, owner)
    settled = known | dict(options)
    return settled.pop("patient_disjoint"), settled


def _deal_paper_scenario(
    plan: PaperScenario, labels: Labels, seed: int, options: Mapping[str, object]
) -> Partition:
    rules, owner = _constructions_of(plan), plan.name
    given: dict[str, Any] = dict(options)
    construction = next(iter(rules))
    if len(rules) > 1:
        construction = one_of("construction", given.pop("construction", construction), list(rules))
        owner = f"{owner} with construction {construction}"
    patient_disjoint, settled = _with_default_options(given, rules[construction], owner, plan)
    deck = shuffled_deck(labels, seed, patient_disjoint)
    plan.require(len(deck))
    hands = rules[construction](deck, plan, **settled)
    assert [len(rows) for rows in hands] == list(plan.sizes)
    return _checked_partition(plan.name, numbered_clients(hands), labels)


def _checked_partition(scenario: str, hands: ClientRows, labels: Labels) -> Partition:
    """Rows in order, the hash taken; nobody without work, nothing dealt twice."""
    if not hands:
        raise UserError(f"{scenario} has no clients")
    for client, rows in hands.items():
        if len(rows) < 2:
            few = "1 image" if len(rows) else "no image"
            raise UserError(
                f"{scenario} leaves {client} {few}, and a client needs two or more to train: use"
                " more data"
            )
    dealt = np.concatenate(list(hands.values()))
    if twice := len(dealt) - len(np.unique(dealt)):
        raise UserError(
            f"{scenario} deals {twice:,} images more than once: clients must be disjoint"
        )
    shards = tuple(Shard(client, np.sort(rows)) for client, rows in hands.items())
    return Partition(
        scenario, shards, index_list.index_list_sha256(index_list.client_image_names(hands, labels))
    )

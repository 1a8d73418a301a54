"""Scenarios: ways to deal a data set's training images to clients.

The paper's twelve are in `paper.py`; every other file with a function of its own name that takes a deck is a way of
the field's (`iid`, `dirichlet`, …). An index list (`NAME.json`) and `package.module:function` are scenarios as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from feddraw import catalog
from feddraw.data.dataset import Labels
from feddraw.errors import UserError, not_negative, one_of, positive, unknown
from feddraw.scenarios import index_list
from feddraw.scenarios.constructions import CONSTRUCTIONS, quota, random_split
from feddraw.scenarios.image_deck import ClientRows, Partition, Rows, Shard, numbered, shuffle
from feddraw.scenarios.own import deal_own
from feddraw.scenarios.paper import PAPER, Scenario, Source


def deal(name: str, labels: Labels, *, seed: int, scale: float = 1.0, options: Mapping[str, object] = {}) -> Partition:
    """Deal the images that the labels describe to clients: disjoint, in exact sizes, the same for the same seed.

    `patient_disjoint` among the options keeps all images of a patient at one client (or out of the federation). The
    paper's scenarios, iid, quantity and by_site keep their sizes and quotas exact then, or say that they cannot;
    dirichlet and shards deal patients in place of images.
    """
    catalog.check_setting_types({"seed": seed, "scale": scale}, {"seed": 0, "scale": 1.0}, "scenario")
    not_negative("seed", seed)
    positive("scale", scale)
    if name.endswith(".json"):
        return _checked_partition(*index_list.read(Path(name), labels, scale), labels)
    if ":" in name:
        return _checked_partition(name, deal_own(name, labels, seed, scale, options), labels)
    if name.lower() in PAPER:
        return _deal_paper(PAPER[name.lower()].at(scale), labels, seed, options)
    known = _known(name)
    patient_disjoint, settled = _with_defaults(options, defaults(_partitions()[known]), known)
    deck = shuffle(labels, seed, patient_disjoint)
    return _checked_partition(known, _partitions()[known](deck, scale, **settled), labels)


def names() -> list[str]:
    """Every scenario there is: the paper's, then the field's usual ones."""
    return [scenario.name for scenario in PAPER.values()] + list(_partitions())


def describe(name: str) -> str:
    """What a scenario does, in a line."""
    if name.lower() in PAPER:
        return PAPER[name.lower()].description
    return catalog.first_doc_line("scenarios", _known(name))


def options_of(name: str) -> dict[str, Any]:
    """The options of a scenario with their defaults, those of all its constructions."""
    if name.lower() not in PAPER:
        return {**defaults(_partitions()[_known(name)]), "patient_disjoint": False}
    scenario = PAPER[name.lower()]
    own = {} if len(_rules(scenario)) == 1 else {"construction": next(iter(_rules(scenario)))}
    for rule in _rules(scenario).values():
        own |= defaults(rule, scenario)
    return {**own, "patient_disjoint": False}


def complete_options(name: str, options: Mapping[str, object]) -> dict[str, Any]:
    """The options given, and the defaults of the others that apply; none are known for a user's own scenario."""
    if name.endswith(".json") or ":" in name:
        return dict(options)
    known = options_of(name)
    if "construction" in known:
        chosen = str(options.get("construction", known["construction"]))
        rule = _rules(PAPER[name.lower()]).get(chosen)
        own = {} if rule is None else defaults(rule, PAPER[name.lower()])  # a wrong one is refused when it deals
        known = {"construction": chosen, **own, "patient_disjoint": False}
    return {**{key: value for key, value in known.items() if value is not None}, **options}


def wanted(name: str, scale: float) -> int | None:
    """How many training images the data should have: the paper's number × scale, or None where any number will do.

    A few more where the clients' sizes, each rounded half up, add up to more (CHM-2 at 0.045: 3,533, not 3,531).
    """
    catalog.check_setting_types({"scale": scale}, {"scale": 1.0}, "scenario")
    scenario = PAPER.get(name.lower())
    return scenario.at(positive("scale", scale)).wanted if scenario else None


def dealt(name: str, scale: float) -> int | None:
    """How many images the clients of a scenario of the paper have together; None of any other."""
    scenario = PAPER.get(name.lower())
    return scenario.at(positive("scale", scale)).total if scenario else None


def dataset_of(name: str) -> Source | None:
    """The data set that the paper uses for a scenario."""
    scenario = PAPER.get(name.lower())
    return scenario.dataset if scenario else None


def known_sizes(name: str, scale: float) -> tuple[str, tuple[int, ...]]:
    """A scenario's name and client sizes, where they do not depend on the data."""
    if name.lower() in PAPER:
        scenario = PAPER[name.lower()].at(positive("scale", scale))
        return scenario.name, scenario.sizes
    if not name.endswith(".json") and ":" not in name:
        _known(name)
    raise UserError(f"the clients of {name} depend on the data: add --labels FILE")


def defaults(rule: Callable[..., Any], scenario: Scenario | None = None) -> dict[str, Any]:
    """The options of a rule: its keyword arguments; those without a default have the scenario's own."""
    parameters = [p for p in inspect.signature(rule).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return {p.name: getattr(scenario, p.name) if p.default is p.empty else p.default for p in parameters}


@cache
def _partitions() -> dict[str, Callable[..., ClientRows]]:
    """The field's usual partitions by name: files here whose function of the same name takes a deck."""
    found = catalog.functions_of_kind("scenarios")
    return {name: rule for name, rule in found.items() if "deck" in inspect.signature(rule).parameters}


def _known(name: str) -> str:
    """The scenario's name as it is written here."""
    if name.lower() not in _partitions():
        raise unknown("scenarios", name, names())
    return name.lower()


def _rules(scenario: Scenario) -> dict[str, Callable[..., list[Rows]]]:
    """Ways to fill the clients: a choice where the paper gives their sizes only."""
    if scenario.enriched:
        return {"quota": quota}
    return CONSTRUCTIONS if scenario.small else {"random": random_split}


def _with_defaults(options: Mapping[str, object], known: dict[str, Any], owner: str) -> tuple[bool, dict[str, Any]]:
    """Whether patients stay together, and all other options with their defaults."""
    catalog.check_setting_types(options, {**known, "patient_disjoint": False}, owner)
    settled = {**known, "patient_disjoint": False, **options}
    return settled.pop("patient_disjoint"), settled


def _deal_paper(scenario: Scenario, labels: Labels, seed: int, options: Mapping[str, object]) -> Partition:
    rules, owner = _rules(scenario), scenario.name
    given: dict[str, Any] = dict(options)
    construction = next(iter(rules))
    if len(rules) > 1:
        construction = one_of("construction", given.pop("construction", construction), list(rules))
        owner = f"{owner} with construction {construction}"
    patient_disjoint, settled = _with_defaults(given, defaults(rules[construction], scenario), owner)
    deck = shuffle(labels, seed, patient_disjoint)
    scenario.require(len(deck))
    hands = rules[construction](deck, scenario, **settled)
    assert [len(rows) for rows in hands] == list(scenario.sizes)
    return _checked_partition(scenario.name, numbered(hands), labels)


def _checked_partition(scenario: str, hands: ClientRows, labels: Labels) -> Partition:
    """Rows in order, the hash taken; nobody without work, nothing dealt twice."""
    if not hands:
        raise UserError(f"{scenario} has no clients")
    for client, rows in hands.items():
        if len(rows) < 2:
            count = "1 image" if len(rows) else "no image"
            raise UserError(
                f"{scenario} leaves {client} {count}, and a client needs two or more to train: use more data"
            )
    dealt = np.concatenate(list(hands.values()))
    twice = len(dealt) - len(np.unique(dealt))
    if twice:
        raise UserError(f"{scenario} deals {twice:,} images more than once: clients must be disjoint")
    shards = tuple(Shard(client, np.sort(rows)) for client, rows in hands.items())
    return Partition(scenario, shards, index_list.fingerprint(index_list.image_names(hands, labels)))

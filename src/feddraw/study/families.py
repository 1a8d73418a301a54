"""What a study says of some of its runs only: where an archive lies on this machine, and a family's own settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from feddraw.errors import UserError, unknown
from feddraw.experiment.settings import Experiment, data_name
from feddraw.results.outcome_settings import ARCHIVES
from feddraw.system.reading import flat

Settings = Mapping[str, Any]  # by dotted path
SETTING_NAMES = frozenset(field.name for field in fields(Experiment))


def belongs(experiment: Experiment, family: str) -> bool:
    """Whether an experiment's scenario or data set has this name, or fits a pattern like CHX-*."""
    names = (experiment.section("scenario")[0], data_name(experiment))
    return any(fnmatchcase(name.lower(), family.lower()) for name in names)


def by_family(changes: Settings) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Changes to every run, and those whose key begins with a family: {"CHX-7.scenario.scale": 0.9}."""
    for_all, families = {}, dict[str, dict[str, Any]]()
    for key, value in changes.items():
        family, _, rest = key.partition(".")
        if family in SETTING_NAMES or rest.partition(".")[0] not in SETTING_NAMES:
            for_all[key] = value
        else:
            families.setdefault(family, {})[rest] = value
    return for_all, families


def read_only(table: Any, path: Path) -> dict[str, dict[str, Any]]:
    """The tables `[only.FAMILY]` of a study's file, each with settings by dotted path."""
    if not isinstance(table, dict) or not all(isinstance(own, dict) for own in table.values()):
        raise UserError(f"{path}: write settings of a family as a table: [only.chexpert] or [only.'CHX-7']")
    return {family: flat(own) for family, own in table.items()}


def read_paths(table: Any, path: Path) -> dict[str, str]:
    """The table `[paths]` of a study's file: data sets and where their archives are."""
    if not isinstance(table, dict) or not all(isinstance(place, str) for place in table.values()):
        raise UserError(f"{path}: [paths] has a line for each archive, such as chexpert = 'FOLDER'")
    for name in table:
        if name not in ARCHIVES:
            raise unknown("archives", name, ARCHIVES)
    return dict(table)


def changed(experiment: Experiment, families: Mapping[str, Settings]) -> Experiment:
    """With the settings of every family that it is of."""
    for family, settings in families.items():
        experiment = experiment.with_settings(settings) if belongs(experiment, family) else experiment
    return experiment


def placed(experiment: Experiment, typed: Mapping[str, str], usual: Mapping[str, str]) -> Experiment:
    """With the path of its archive: as typed; else its own setting; else the file's."""
    name, own = data_name(experiment), experiment.section("data")[1].get("path", "")
    place = typed.get(name) or own or usual.get(name, "")
    return experiment.with_settings({"data.path": place}) if place and place != own else experiment


def require_members(families: Sequence[str], experiments: Sequence[Experiment], path: Path) -> None:
    """Refuse a family that no run is of: a setting that is quietly lost would be found out days later."""
    for family in families:
        if not any(belongs(experiment, family) for experiment in experiments):
            raise UserError(f"{path} has no run with a scenario or data set '{family}': its settings would be lost")

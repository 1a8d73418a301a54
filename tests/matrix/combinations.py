"""The matrix as values: what is tried together, and what is to work there."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
MATRIX = Path(__file__).with_name("matrix.toml")
INSTALLS = ("wheel", "server", "lowest")


@dataclass(frozen=True)
class Combination:
    """One environment. `matrix.toml` says what each field means."""

    name: str
    framework: str
    version: str
    python: str
    works: tuple[str, ...]
    extras: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    install: str = "wheel"
    large: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Matrix:
    combinations: tuple[Combination, ...]
    works: Mapping[
        str, Mapping[str, tuple[str, ...]]
    ]  # by group, what should work and the tests behind it
    tools: tuple[str, ...]  # what the tests themselves need

    def tried(self, combination: Combination) -> dict[str, tuple[str, ...]]:
        """What should work in a combination, with its tests."""
        return {
            what: tests for group in combination.works for what, tests in self.works[group].items()
        }


def read(path: Path = MATRIX) -> Matrix:
    """The matrix; a mistake in it is a ValueError that names it."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    works = {
        group: {what: tuple(tests) for what, tests in one.items()}
        for group, one in table["works"].items()
    }
    combinations = tuple(_combination(one) for one in table["combination"])
    for one in combinations:
        if unknown := [group for group in one.works if group not in works]:
            raise ValueError(f"{one.name}: there is no [works.{unknown[0]}]")
        if one.install not in INSTALLS:
            raise ValueError(
                f"{one.name}: install is one of {', '.join(INSTALLS)}, not {one.install}"
            )
    names = [one.name for one in combinations]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two combinations are called {twice[0]}")
    return Matrix(combinations, works, tuple(table["tools"]))


def _combination(table: Mapping[str, Any]) -> Combination:
    known = {one.name for one in fields(Combination)}
    if unknown := table.keys() - known:
        raise ValueError(f"{table.get('name')}: there is no key {min(unknown)}")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in table.items()
    }
    return Combination(**values)


def lowest(pyproject: Path = ROOT / "pyproject.toml") -> list[str]:
    """The lowest version of each dependency that pyproject.toml allows, as constraints for pip."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    several = [project["dependencies"], *project["optional-dependencies"].values()]
    found: dict[str, str] = {}
    for requirement in (one for group in several for one in group):
        name, _, bounds = requirement.partition(">=")
        if bounds:
            found.setdefault(name.partition("[")[0].strip(), bounds.partition(",")[0].strip())
    return [f"{name}=={version}" for name, version in found.items()]

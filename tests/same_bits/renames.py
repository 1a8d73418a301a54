"""The committed table of renames, renames.toml: where either tree has what moved, and its names."""

from __future__ import annotations

import importlib
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("renames.toml")


@dataclass(frozen=True)
class Explained:
    """A difference that may be there."""

    case: str
    path: str
    at_most: float
    why: str

    def covers(self, case: str, path: str, amount: float) -> bool:
        """Whether this explains a difference of that size."""
        same_place = fnmatchcase(case, self.case) and fnmatchcase(path, self.path)
        return same_place and amount <= self.at_most


@dataclass(frozen=True)
class Renames:
    """What is called otherwise, and what may differ."""

    modules: Mapping[str, str] = field(default_factory=dict)
    objects: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    methods_moved_out: Mapping[str, str] = field(default_factory=dict)
    explained: tuple[Explained, ...] = ()

    @staticmethod
    def read(path: Path = TABLE) -> Renames:
        """The table; a heading that is not known is refused."""
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        explained = tuple(Explained(**row) for row in table.pop("explained", []))
        return Renames(**table, explained=explained)

    def places(self, former: str) -> list[str]:
        """Where `module:name` may be: the present place first."""
        if former in self.objects:
            return [self.objects[former], former]
        module, _, name = former.partition(":")
        fits = [old for old in self.modules if module == old or module.startswith(f"{old}.")]
        moved = [self.modules[old] + module[len(old) :] for old in sorted(fits, key=len)[-1:]]
        return [f"{place}:{name}" for place in [*moved, module]]

    def find(self, former: str) -> Any:
        """An object of the tree at hand, by its former `module:name`."""
        for place in self.places(former):
            module, _, name = place.partition(":")
            try:
                return getattr(importlib.import_module(module), name)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                    raise  # something that it imports is missing: no matter of names
            except AttributeError:
                continue
        raise LookupError(f"{former} is at none of {self.places(former)}: add it to {TABLE.name}")

    def file(self, folder: Path, former: str) -> Path:
        """A file of a run's folder under whichever name it has there."""
        present = folder / self.files.get(former, former)
        return present if present.exists() else folder / former

    def present_path(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """A path in a decoded document by present names; its first part is the section."""
        section, inner = path[0], path[1:]
        for former, present in self.keys.get(section, {}).items():
            inner = tuple(_replaced(inner, tuple(former.split(".")), tuple(present.split("."))))
        return (section, *inner)

    def present_value(self, path: tuple[str, ...], value: Any) -> Any:
        """A word by its present name, in a column that has such; `path` is by present names."""
        words = self.values.get(path[0], {}).get(path[-1], {})
        if not (words and isinstance(value, str)):
            return value
        word, colon, rest = value.partition(":")
        return words.get(word, word) + colon + rest

    def explanation(self, case: str, path: str, amount: float = math.inf) -> str:
        """Why a difference is meant; empty where the table does not say."""
        return next((row.why for row in self.explained if row.covers(case, path, amount)), "")

    def names_moved_out(self, name: str) -> bool:
        """Whether a method or a mixture A+B has a part that left the catalogue."""
        return any(half in self.methods_moved_out for half in name.split("+"))


def _replaced(
    path: tuple[str, ...], former: tuple[str, ...], present: tuple[str, ...]
) -> Iterator[str]:
    """A path with every run of its parts that reads `former` put as `present`."""
    place = 0
    while place < len(path):
        if path[place : place + len(former)] == former:
            yield from present
            place += len(former)
        else:
            yield path[place]
            place += 1

"""Data sets by name: our own, a path to anyone's file or folder, or `package.module:function`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from feddraw.data import Dataset
from feddraw.data.cache import Progress
from feddraw.data.preparation import Preparation
from feddraw.errors import UserError, unknown

NAMES = {
    "phantom": "synthetic radiographs drawn from formulas; no download",
    "chestmnist": "MedMNIST+ ChestMNIST, 112,120 images at 28 to 224 px; downloaded once",
    "chexpert": "CheXpert, 191,027 frontal training images, from its own folder (data.path)",
    "nih": "NIH ChestX-ray14, 112,120 images, from its own folder (data.path)",
    "folder": "your own CSV and PNG, JPEG or DICOM files (data.path)",
}


def names() -> dict[str, str]:
    """Each data set with a line about it."""
    return dict(NAMES)


def open_dataset(name: str, *, size: int, options: Mapping[str, object], progress: Progress | None = None) -> Dataset:
    """The data set of this name with its images at this size; `options` are the arguments of its function."""
    function, given = resolve(name)
    parameters = inspect.signature(function).parameters
    if "how" in parameters:
        common = {field.name for field in fields(Preparation)} - {"size", "progress"}
        known = {**get_type_hints(function), **get_type_hints(Preparation)}
        own = check(name, {**options, **given}, known, [*parameters.keys() - {"how"}, *common])
        how = Preparation(size=size, progress=progress, **{key: own.pop(key) for key in common & own.keys()})
        dataset = function(how, **own)
    else:
        chosen = check(name, options, get_type_hints(function), list(parameters.keys() - {"size", "progress"}))
        offered = {"size": size, "progress": progress}
        dataset = function(**{key: value for key, value in offered.items() if key in parameters}, **chosen)
    if not isinstance(dataset, Dataset):
        raise UserError(f"{name} gave a {type(dataset).__name__}, not a feddraw.data.Dataset")
    return dataset


def resolve(name: str) -> tuple[Callable[..., Any], dict[str, object]]:
    """The function behind a name, and what the name itself says about its arguments."""
    if name in NAMES:
        return getattr(import_module(f"feddraw.data.{name}"), name), {}
    path = Path(name).expanduser()
    if path.exists() or path.suffix in (".npz", ".csv", ".gz"):
        if not path.exists():
            raise UserError(f"no file {name}")
        kind = "npz" if path.suffix == ".npz" else "folder"
        return getattr(import_module(f"feddraw.data.{kind}"), kind), {"path": str(path)}
    if ":" in name:
        return imported(name), {}
    raise unknown("data sets", name, NAMES)


def imported(name: str) -> Callable[..., Any]:
    """Someone's own function."""
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except ImportError as error:
        raise UserError(f"cannot import {module}: {error}") from error
    except AttributeError:
        raise UserError(f"{module} has no function {function}") from None
    if not callable(found):
        raise UserError(f"{name} is not a function")
    result: Callable[..., Any] = found
    return result


def check(name: str, options: Mapping[str, object], hints: Mapping[str, Any], known: list[str]) -> dict[str, Any]:
    """The options, if the data set has them all and they are of the right kind."""
    for option, value in options.items():
        if option not in known:
            raise UserError(f"{name} has no option '{option}'; it has {', '.join(sorted(known))}")
        wanted = simple(hints.get(option))
        if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
            kinds = " or ".join(kind.__name__ for kind in wanted if kind is not type(None))
            raise UserError(f"{option} must be {kinds}, not {value!r}")
    return dict(options)


def simple(hint: Any) -> tuple[type, ...]:
    """The types that a value may have, where they can be told from the hint; a whole number will do for a float."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if not all(kind in (bool, int, float, str, Path, type(None)) for kind in kinds):
        return ()
    return (*kinds, int) if float in kinds else tuple(kinds)

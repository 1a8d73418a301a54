"""A name is a file: `find("methods", "fedprox")` is the function `fedprox` in `methods/fedprox.py`.

A family of names that differ in a table only is one file with that table beside it: each heading of
`datasets/medmnist.toml` is a name, and the function `medmnist` makes its function of the name and
of what stands below the heading.

`package.module:function` is anyone's own.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from feddraw.errors import UserError, unknown

# where the files of a kind are; of other kinds, in the package of that name
PACKAGES = {
    "datasets": "feddraw.data.datasets",
    "scenarios": "feddraw.data.scenarios",
    "trackers": "feddraw.results.trackers",
}
# packages with networks, which have the name that pip knows them by
MODEL_PACKAGES = ("monai", "timm", "torchvision", "torchxrayvision", "transformers")
# what stands in a package above the others of its kind, because it needs more than they do
IN_OTHER_ROOMS = {("engines", "flower"): "feddraw.flower.engine"}


@cache
def names(kind: str) -> tuple[str, ...]:
    """Every file of a kind, and every name of a family."""
    package = importlib.import_module(_package_of(kind))
    files = [module.name for module in pkgutil.iter_modules(package.__path__)]
    families = {file for file, _ in members(kind).values()}
    public = [name for name in files if not name.startswith("_") and name not in families]
    elsewhere = [name for other_kind, name in IN_OTHER_ROOMS if other_kind == kind]
    return tuple(sorted([*public, *members(kind), *elsewhere]))


@cache
def members(kind: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """The names of families: each with its family's file, and what its table says of it."""
    package = importlib.import_module(_package_of(kind))
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for folder in package.__path__:
        for table in sorted(Path(folder).glob("*.toml")):
            entries = tomllib.loads(table.read_text(encoding="utf-8"))
            found |= {name: (table.stem, settings) for name, settings in entries.items()}
    return found


def _package_of(kind: str) -> str:
    return PACKAGES.get(kind, f"feddraw.{kind}")


def _module_of(kind: str, name: str) -> str:
    file, _ = members(kind).get(name, (name, {}))
    return IN_OTHER_ROOMS.get((kind, name), f"{_package_of(kind)}.{file}")


def find(kind: str, name: str) -> Callable[..., Any]:
    """The function behind a name."""
    if ":" in name:
        return own_function(name)
    if name not in names(kind):
        raise unknown(kind, name, names(kind))
    file, settings = members(kind).get(name, (name, {}))
    module = importlib.import_module(_module_of(kind, name))
    function = getattr(module, file, None)
    if not callable(function):
        raise UserError(
            f"{module.__name__} has no function '{file}': each file of {kind} has one that is named"
            " as the file"
        )
    if settings:
        function = function(name, **settings)
    return cast("Callable[..., Any]", function)


def functions_of_kind(kind: str) -> dict[str, Callable[..., Any]]:
    """Each file of a kind that has a function of its own name, with that function, and each name of
    a family.
    """
    modules = {name: importlib.import_module(_module_of(kind, name)) for name in names(kind)}
    return {
        name: find(kind, name)
        for name, module in modules.items()
        if name in members(kind) or callable(getattr(module, name, None))
    }


def declared(kind: str, name: str, fact: str) -> bool:
    """Whether the file of a name says so, as `SYNTHETIC = True` outside of its function.

    False for a path and for anyone's own `package.module:function`: nothing of theirs is imported.
    """
    if name not in names(kind):
        return False
    return bool(getattr(importlib.import_module(_module_of(kind, name)), fact, False))


def first_doc_line(kind: str, name: str) -> str:
    """The first line of what a file's function says about itself."""
    return (inspect.getdoc(find(kind, name)) or "").partition("\n")[0]


def own_function(name: str) -> Callable[..., Any]:
    """Somebody's own `package.module:function`, also from the folder where the command is typed.

    The name was typed or is trusted (`Experiment.trusted`). Only then is the current folder on the
    path, and last: nothing that is installed is looked for there.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UserError(f"'{name}' is not of the form package.module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and not module.startswith(error.name):
            raise  # a missing import of theirs, not a wrong name
        package = module.partition(".")[0]
        get = f" (pip install {package})" if package in MODEL_PACKAGES else ""
        raise UserError(
            f"cannot import '{module}' for {name}: is it installed{get}, or in this folder?"
        ) from None
    if not hasattr(imported, attribute):
        raise UserError(f"module '{module}' has no '{attribute}'")
    function = getattr(imported, attribute)
    if not callable(function):
        raise UserError(f"'{name}' is no function, but of type {type(function).__name__}")
    return cast("Callable[..., Any]", function)


def call_with_settings(
    function: Callable[..., Any], settings: Mapping[str, Any], what: str, **arguments: Any
) -> Any:
    """Call with settings from a file or the command line, and with arguments of the caller's.

    Settings that the function names are checked by its defaults. One with `**` arguments may pass
    others on to what it calls.
    """
    parameters = inspect.signature(function).parameters
    named = {name: p.default for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    open_ended = len(named) < len(parameters)
    checked = {name: value for name, value in settings.items() if name in named or not open_ended}
    defaults = {name: default for name, default in named.items() if name not in arguments}
    check_setting_types(checked, defaults, what)
    try:
        bound = inspect.signature(function).bind(**arguments, **settings)
    except TypeError as error:
        passed = ", ".join([*arguments, *settings])
        how = f" with {passed}" if passed else ""
        raise UserError(f"{what} '{function.__name__}' cannot be called{how}: {error}") from None
    try:
        return function(*bound.args, **bound.kwargs)
    except TypeError as error:
        if not str(error).startswith("Can't instantiate abstract class"):
            raise
        raise UserError(f"{what} '{function.__name__}' is not complete: {error}") from error


def check_setting_types(
    settings: Mapping[str, Any], defaults: Mapping[str, Any], what: str
) -> None:
    """Refuse names that are not among the defaults, and values of another type than theirs."""
    for name, value in settings.items():
        if name not in defaults:
            known = f": it has {', '.join(defaults)}" if defaults else ""
            raise UserError(f"{what} has no setting '{name}'{known}")
        if not _fits_default(value, defaults[name]):
            full = f"{what}.{name}" if what else name
            raise UserError(f"{full} must be {_type_in_words(defaults[name])}, not {value!r}")


def _fits_default(value: Any, default: Any) -> bool:
    if default is inspect.Parameter.empty or default is None:
        return True
    if isinstance(value, bool) or isinstance(default, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, float):
        return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**1023)
    return isinstance(value, type(default))


def _type_in_words(default: Any) -> str:
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return kinds.get(type(default), f"like {default!r}")

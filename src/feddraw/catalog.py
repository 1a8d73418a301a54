"""A name is a file: `find("methods", "fedprox")` is the function `fedprox` in `methods/fedprox.py`.

`package.module:function` is anyone's own.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from feddraw.errors import UserError, unknown


def names(kind: str) -> list[str]:
    """Every file of a kind."""
    package = importlib.import_module(f"feddraw.{kind}")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def find(kind: str, name: str) -> Callable[..., Any]:
    """The function behind a name."""
    if ":" in name:
        return outside(name)
    if name not in names(kind):
        raise unknown(kind, name, names(kind))
    function: Callable[..., Any] = getattr(importlib.import_module(f"feddraw.{kind}.{name}"), name)
    return function


def outside(name: str) -> Callable[..., Any]:
    """Somebody's own `package.module:function`, also from the folder where the command is typed."""
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name and not module.startswith(error.name):
            raise  # a missing import of theirs, not a wrong name
        raise UserError(f"cannot import '{module}' for {name}: is it installed, or in this folder?") from None
    except AttributeError:
        raise UserError(f"module '{module}' has no '{attribute}'") from None
    return function


def call(function: Callable[..., Any], settings: Mapping[str, Any], what: str, **given: Any) -> Any:
    """Call with settings from a file or the command line: unknown names and wrong types are the user's mistakes."""
    known = {n: p for n, p in inspect.signature(function).parameters.items() if n not in given}
    for name, value in settings.items():
        if name not in known:
            raise UserError(f"{what} has no setting '{name}'" + (f": it has {', '.join(known)}" if known else ""))
        _check_type(f"{what}.{name}", value, known[name].default)
    return function(**given, **settings)


def _check_type(name: str, value: Any, default: Any) -> None:
    if default is inspect.Parameter.empty or default is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = number if isinstance(default, float) else isinstance(value, type(default))
    if not fits or (isinstance(value, bool) and not isinstance(default, bool)):
        raise UserError(f"{name} must be {_kind(default)}, not {value!r}")


def _kind(default: Any) -> str:
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
    return kinds.get(type(default), f"like {default!r}")

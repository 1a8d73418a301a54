"""A method as text, for the messages of secure rounds: a site weighs itself by the rules that the
server names.

Only this package's own rules travel, by their file and class and with their settings. A server must
not choose what code runs at a site, so nothing else is ever imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from feddraw import catalog, core
from feddraw.core import Local, Method, Server, Weighting
from feddraw.errors import UserError

RULE_TYPES: Mapping[str, type] = {"local": Local, "weighting": Weighting, "server": Server}
CORE_MODULE, METHODS_PACKAGE = "feddraw.core", "feddraw.methods."


def method_as_text(method: Method) -> dict[str, Any]:
    """The rules by name, with their settings."""
    return {part: _rule_as_text(getattr(method, part)) for part in RULE_TYPES} | {
        "limited": method.limited
    }


def method_from_text(given: Mapping[str, Any]) -> Method:
    """The same rules at the other end."""
    try:
        rules = {part: _rule_from_text(given[part]) for part in RULE_TYPES}
        if not all(isinstance(rules[part], kind) for part, kind in RULE_TYPES.items()):
            raise ValueError("a rule is of another kind")
        return Method(**rules, limited=bool(given["limited"]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"the server's method is not known here: {error!s:.80}") from None


def _rule_as_text(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        name = f"{type(value).__module__.removeprefix(METHODS_PACKAGE)}:{type(value).__name__}"
        if type(value).__module__ != CORE_MODULE and not type(value).__module__.startswith(
            METHODS_PACKAGE
        ):
            raise UserError(
                f"secure sums over Flower need the rules of this package, and {name} is another's"
            )
        return {"rule": name} | {
            one.name: _rule_as_text(getattr(value, one.name)) for one in fields(value) if one.init
        }
    if isinstance(value, list | tuple):
        return [_rule_as_text(one) for one in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise UserError(
        f"secure sums over Flower need plain settings, and a {type(value).__name__} is none"
    )


def _rule_from_text(given: Any) -> Any:
    if isinstance(given, list):
        return tuple(_rule_from_text(one) for one in given)
    if not isinstance(given, dict):
        return given
    file, _, name = str(given["rule"]).partition(":")
    module = core if file == CORE_MODULE else sys.modules[catalog.find("methods", file).__module__]
    found = vars(module)[name]
    if not (
        isinstance(found, type) and is_dataclass(found) and found.__module__ == module.__name__
    ):
        raise ValueError(f"{name} is no rule")
    return found(
        **{name: _rule_from_text(value) for name, value in given.items() if name != "rule"}
    )

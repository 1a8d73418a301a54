"""A method as text, for the messages of secure rounds: a site weighs itself by the rules that the
server names.

Only this package's own rules travel, by their file and class and with their settings. A server must
not choose what code runs at a site, so nothing else is ever imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

from feddraw import catalog
from feddraw.core import (
    Joint,
    Local,
    Method,
    Server,
    Weighted,
    Weighting,
    exchange,
    local,
    schedules,
    server,
    weighting,
)
from feddraw.errors import UserError

RULE_TYPES: Mapping[str, type] = {"local": Local, "weighting": Weighting, "server": Server}
METHODS_PACKAGE = "feddraw.methods."
# Modules of the core that have rules, or settings of rules.
CORE_MODULES: Mapping[str, ModuleType] = {
    module.__name__: module for module in (exchange, local, schedules, server, weighting)
}


def method_as_text(method: Method) -> dict[str, Any]:
    """The rules by name, with their settings."""
    if isinstance(method.aggregation, Joint):
        raise UserError("a method that makes model and weights together has no rules to name")
    rules = {
        "local": method.local,
        "weighting": method.aggregation.weighting,
        "server": method.aggregation.server,
    }
    text = {part: _rule_as_text(rule) for part, rule in rules.items()}
    return text | {"limited": method.limited}


def method_from_text(given: Mapping[str, Any]) -> Method:
    """The same rules at the other end."""
    try:
        rules = {part: _rule_from_text(given[part]) for part in RULE_TYPES}
        if not all(isinstance(rules[part], kind) for part, kind in RULE_TYPES.items()):
            raise ValueError("a rule is of another kind")
        aggregation = Weighted(rules["weighting"], rules["server"])
        return Method(aggregation, rules["local"], limited=bool(given["limited"]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"the server's method is not known here: {error!s:.80}") from None


def _rule_as_text(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        module = type(value).__module__
        name = f"{module.removeprefix(METHODS_PACKAGE)}:{type(value).__name__}"
        if module not in CORE_MODULES and not module.startswith(METHODS_PACKAGE):
            raise UserError(
                f"secure sums over Flower need the rules of this package, and {name} is another's"
            )
        settings = [entry.name for entry in fields(value) if entry.init]
        return {"rule": name} | {
            setting: _rule_as_text(getattr(value, setting)) for setting in settings
        }
    if isinstance(value, list | tuple):
        return [_rule_as_text(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise UserError(
        f"secure sums over Flower need plain settings, and a {type(value).__name__} is none"
    )


def _rule_from_text(given: Any) -> Any:
    if isinstance(given, list):
        return tuple(_rule_from_text(item) for item in given)
    if not isinstance(given, dict):
        return given
    file, _, name = str(given["rule"]).partition(":")
    kind = vars(_module_of(file))[name]
    if not (isinstance(kind, type) and is_dataclass(kind) and kind.__module__.endswith(file)):
        raise ValueError(f"{name} is no rule")
    settings = {key: _rule_from_text(value) for key, value in given.items() if key != "rule"}
    return kind(**settings)


def _module_of(file: str) -> ModuleType:
    """A module of this package that has rules; an error for any other."""
    if file in CORE_MODULES:
        return CORE_MODULES[file]
    return sys.modules[catalog.find("methods", file).__module__]

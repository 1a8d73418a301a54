"""A method by its name and settings; `A+B` takes the weighting of A, the local and server rules of
B.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feddraw import catalog
from feddraw.core import (
    ASKED,
    Joint,
    Method,
    Server,
    Weighted,
    why_not_first,
    why_not_second,
)
from feddraw.errors import UserError
from feddraw.text import with_article

Section = Mapping[str, Any]  # a name and its settings


def method_section(section: Section) -> dict[str, Any]:
    """A method's settings with dotted names: in TOML `fedadp.alpha = 4` is a table inside the
    table.
    """
    halves = str(section.get("name", "")).split("+")
    inside = {
        key: table for key, table in section.items() if key in halves and isinstance(table, Mapping)
    }
    dotted = {
        f"{half}.{key}": value for half, table in inside.items() for key, value in table.items()
    }
    return {key: value for key, value in section.items() if key not in inside} | dotted


def combined_method(name: str, settings: Section) -> Method:
    halves = _method_halves(name)
    shares = _method_settings_by_half(halves, settings)
    parts = [half.make(share) for half, share in zip(halves, shares, strict=True)]
    if len(parts) == 1:
        return parts[0]
    mixture = _mixed_method([half.name for half in halves], *parts)
    _require_effect_in_mixture(halves[0], shares[0], _first_half, name)
    _require_effect_in_mixture(halves[1], shares[1], _second_half, name)
    return mixture


@dataclass(frozen=True, eq=False)
class MethodHalf:
    """One of the two methods of a mixture, or the only one: its name, its function and that
    function's defaults.
    """

    name: str
    function: Callable[..., Any]
    defaults: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """Whether a setting is its own; the method's name may stand before it (`fedadp.alpha`)."""
        return self.plain(key) in self.defaults

    def plain(self, key: str) -> str:
        """A setting without the method's name before it."""
        return key.removeprefix(f"{self.name}.")

    def make(self, settings: Section) -> Method:
        method = catalog.call_with_settings(self.function, settings, "method")
        if not isinstance(method, Method):
            raise UserError(
                f"'{self.name}' must return a feddraw.core.Method, not"
                f" {with_article(type(method).__name__)}"
            )
        return method


def _method_halves(name: str) -> list[MethodHalf]:
    names = name.split("+")
    if len(names) > 2:
        raise UserError(f"'{name}' mixes more than two methods: give weighting+training")
    if len(names) == 2 and names[0] == names[1]:
        raise UserError(f"'{name}' mixes a method with itself: write {names[0]}")
    functions = {half: catalog.find("methods", half) for half in names}
    return [
        MethodHalf(half, function, method_defaults(function))
        for half, function in functions.items()
    ]


def method_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
    }


def _method_settings_by_half(
    halves: Sequence[MethodHalf], settings: Section
) -> list[dict[str, Any]]:
    """Each half's settings under its own names; a setting that none has, or that both could mean,
    is refused.
    """
    settings_of: dict[str, dict[str, Any]] = {half.name: {} for half in halves}
    name = "+".join(half.name for half in halves)
    for key, value in settings.items():
        owners = [half for half in halves if half.has(key)]
        if not owners:
            known = sorted({setting for half in halves for setting in half.defaults})
            raise UserError(
                f"{name} has no setting '{key}'" + (f": it has {', '.join(known)}" if known else "")
            )
        if len(owners) > 1:
            ways = " or ".join(f"{half.name}.{key}" for half in halves)
            raise UserError(f"both halves of {name} have a setting '{key}': write {ways}")
        owner = owners[0]
        plain_key = owner.plain(key)
        if plain_key in settings_of[owner.name]:
            raise UserError(
                f"{owner.name}'s setting '{plain_key}' is given twice, with and without"
                f" '{owner.name}.' before it"
            )
        settings_of[owner.name][plain_key] = value
    return list(settings_of.values())


def _first_half(method: Method) -> object:
    """What `A+B` takes from A."""
    rule = method.aggregation
    return rule if isinstance(rule, Joint) else rule.weighting


def _second_half(method: Method) -> object:
    """What `A+B` takes from B."""
    rule = method.aggregation
    return method.local, rule if isinstance(rule, Joint) else rule.server


def _require_effect_in_mixture(
    half: MethodHalf, share: Section, kept: Callable[[Method], Any], name: str
) -> None:
    """Refuse a setting of what the mixture does not take from a half: it would be recorded and do
    nothing.
    """
    for key, value in share.items():
        if value != half.defaults[key] and half.defaults[key] is not inspect.Parameter.empty:
            usual = {**share, key: half.defaults[key]}
            if kept(half.make(usual)) == kept(half.make(share)):
                raise UserError(
                    f"{half.name}'s setting '{key}' changes nothing in {name}: leave it out"
                )


def _mixed_method(names: Sequence[str], first: Method, second: Method) -> Method:
    """The weighting of one with the local and server rules of the other.

    A joint rule has no weighting to give: it takes the other's local rule instead, if the other
    has a plain server.
    """
    reasons = (why_not_first(first), why_not_second(second))
    for name, reason in zip(names, reasons, strict=True):
        if reason:
            raise UserError(
                f"{'+'.join(names)}: {name} {reason} (`feddraw list methods` shows what combines)"
            )
    assert isinstance(second.aggregation, Weighted)
    if isinstance(first.aggregation, Joint):
        if type(second.aggregation.server) is not Server:
            raise UserError(
                f"{'+'.join(names)}: {names[0]} makes the model itself, so the server rule of"
                f" {names[1]} would change nothing; a method that changes local training only fits"
            )
        return Method(first.aggregation, second.local)
    return Method(Weighted(first.aggregation.weighting, second.aggregation.server), second.local)


def method_with_defaults(name: str, settings: Section) -> Section:
    """Every setting of a method; one that both halves of a mixture have is under each
    half's name.
    """
    halves = _method_halves(name)
    count = Counter(key for half in halves for key in half.defaults)
    recorded = {"name": name}
    for half, share in zip(halves, _method_settings_by_half(halves, settings), strict=True):
        whole = without_required(half.defaults) | share
        recorded |= {
            f"{half.name}.{key}" if count[key] > 1 else key: value for key, value in whole.items()
        }
    return recorded


def without_required(defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: default
        for name, default in defaults.items()
        if default is not inspect.Parameter.empty
    }


def place_in_mixture(method: Method) -> str:
    """Which half of `A+B` a method can be: A gives its weighting, B its local and server rules."""
    reasons = {"A": why_not_first(method), "B": why_not_second(method)}
    return " or ".join(half for half, reason in reasons.items() if not reason) or "neither"


LAYERS_IN_WORDS = {"none": "", "classifier": "classifier", "all": "all parameters"}


def needs_of_method(method: Method) -> str:
    """All that a method looks at, beside the models that it averages."""
    needs = method.needs
    words = [
        "sizes" if needs.sizes else "",
        LAYERS_IN_WORDS[needs.layers],
        "steps" if needs.steps else "",
        *(ASKED[name].words for name in method.asks),
        "labelled images at the server" if needs.server_images else "",
    ]
    return ", ".join(word for word in words if word) or "nothing"

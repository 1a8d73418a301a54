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
from feddraw.core import Method
from feddraw.errors import UserError

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
    _require_effect_in_mixture(halves[0], shares[0], lambda method: method.weighting, name)
    _require_effect_in_mixture(
        halves[1], shares[1], lambda method: (method.local, method.server), name
    )
    return mixture


@dataclass(frozen=True, eq=False)
class MethodHalf:
    """One of the two methods of a mixture, or the only one: its name, its function and that
    function's defaults.
    """

    name: str
    function: Callable[..., Any]
    defaults: Mapping[str, Any]

    def own(self, key: str) -> str | None:
        """What it calls a setting, which may have the method's name before it (`fedadp.alpha`);
        None if not its own.
        """
        plain = key.removeprefix(f"{self.name}.")
        return plain if plain in self.defaults else None

    def make(self, settings: Section) -> Method:
        method = catalog.call_with_settings(self.function, settings, "method")
        if not isinstance(method, Method):
            raise UserError(
                f"'{self.name}' must return a feddraw.core.Method, not a {type(method).__name__}"
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
    shares: list[dict[str, Any]] = [{} for _ in halves]
    name = "+".join(half.name for half in halves)
    for key, value in settings.items():
        owners = [
            (half, share, own)
            for half, share in zip(halves, shares, strict=True)
            if (own := half.own(key))
        ]
        if not owners:
            known = sorted({own for half in halves for own in half.defaults})
            raise UserError(
                f"{name} has no setting '{key}'" + (f": it has {', '.join(known)}" if known else "")
            )
        if len(owners) > 1:
            ways = " or ".join(f"{half.name}.{key}" for half in halves)
            raise UserError(f"both halves of {name} have a setting '{key}': write {ways}")
        half, share, own = owners[0]
        if own in share:
            raise UserError(
                f"{half.name}'s setting '{own}' is given twice, with and without '{half.name}.'"
                " before it"
            )
        share[own] = value
    return shares


def _require_effect_in_mixture(
    half: MethodHalf, share: Section, kept: Callable[[Method], Any], name: str
) -> None:
    """Refuse a setting of what the mixture does not take from a half: it would be recorded and do
    nothing.
    """
    for own, value in share.items():
        if value != half.defaults[own] and half.defaults[own] is not inspect.Parameter.empty:
            usual = {**share, own: half.defaults[own]}
            if kept(half.make(usual)) == kept(half.make(share)):
                raise UserError(
                    f"{half.name}'s setting '{own}' changes nothing in {name}: leave it out"
                )


def _mixed_method(names: Sequence[str], first: Method, second: Method) -> Method:
    """The weighting of one with the local and server rules of the other, unless that loses what
    either is named for.
    """
    for name, reason in zip(names, (why_no_weighting(first), why_no_training(second)), strict=True):
        if reason:
            raise UserError(
                f"{'+'.join(names)}: {name} {reason} (`feddraw list methods` shows what combines)"
            )
    return Method(second.local, first.weighting, second.server)


def why_no_weighting(method: Method) -> str:
    """Why a method cannot be the first half of a mixture, which gives its weighting; empty if it
    can.
    """
    if method.centralised:
        return "trains in one place, so there are no clients to weigh"
    if method.weighting.common and not method.only_weighs:
        return "has no weighting of its own, so it cannot come first: use fedavg or uniform instead"
    if method.weighting.made_for is not None:
        return "has weights that only fit its own server rule, so it cannot come first"
    return ""


def why_no_training(method: Method) -> str:
    """Why a method cannot be the second half of a mixture, which gives its local and server rules;
    empty if it can.
    """
    if method.centralised:
        return "trains in one place, so there are no clients to weigh"
    if not method.local.starts_from_sent:
        return "never trains on the common model, so it cannot come second"
    if not method.server.takes_weights:
        return "has a server rule that takes no weights, so it cannot come second"
    if method.only_weighs:
        return "is a weighting only, so it cannot come second"
    return ""


def method_with_defaults(name: str, settings: Section) -> Section:
    """Every setting of a method; one that both halves of a mixture have is under each
    half's name.
    """
    halves = _method_halves(name)
    count = Counter(own for half in halves for own in half.defaults)
    recorded = {"name": name}
    for half, share in zip(halves, _method_settings_by_half(halves, settings), strict=True):
        whole = without_required(half.defaults) | share
        recorded |= {
            f"{half.name}.{own}" if count[own] > 1 else own: value for own, value in whole.items()
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
    return (
        "A" if not why_no_weighting(method) else "B" if not why_no_training(method) else "neither"
    )


ASKED_OF_CLIENTS = {
    "loss": "clients' loss",
    "accuracy": "clients' accuracy",
    "labels": "label counts",
    "gradient": "clients' gradient",
    "groups": "group counts",
    "held": "clients' memory",
    "gradient mean": "batch gradients",
    "classifier gradient mean": "batch gradients of the classifier",
    "gradient spread": "their variance",
}


def needs_of_method(method: Method) -> str:
    """All that a method looks at, beside the models that it averages."""
    proxy = ["labelled images at the server"] if method.weighting.proxy else []
    needs = [method.weighting.needs, *(ASKED_OF_CLIENTS[name] for name in method.asks), *proxy]
    return ", ".join([need for need in needs if need != "nothing"] or ["nothing"])

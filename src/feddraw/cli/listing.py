"""`feddraw list`: the methods, models, data sets or scenarios, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from feddraw.cli.show import as_json, console, table
from feddraw.errors import unknown

if TYPE_CHECKING:
    from feddraw.core import Method


def list_(
    kind: Annotated[str, Argument(help="What to list: methods, models, data or scenarios.")],
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the methods, models, data sets or scenarios."""
    lists = {"methods": methods, "models": models, "data": datasets, "scenarios": scenarios}
    if kind not in lists:
        raise unknown("lists", kind, lists)
    rows = lists[kind]()
    if json:
        as_json(rows)
        return
    columns = list(rows[0])
    cells = [[_text(row[column]) for column in columns] for row in rows]
    console().print(table(columns, cells, left=len(columns)))


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def methods() -> list[dict[str, Any]]:
    from feddraw import catalog
    from feddraw.experiment.method_by_name import defaults_of, without_empty

    rows = []
    for name in catalog.names("methods"):
        function = catalog.find("methods", name)
        method = function()
        rows.append(
            {
                "name": name,
                "what": catalog.about("methods", name),
                "needs": needs_of(method),
                "cost": method.weighting.cost,
                "client keeps": ", ".join(method.local.keeps) or "nothing",
                "client sends": ", ".join(["model", *method.sends]),
                "streams": method.streams,
                "secure": str(method.secure),
                "in A+B": place_in_mixture(method),
                "settings": without_empty(defaults_of(function)),
            }
        )
    return rows


def place_in_mixture(method: Method) -> str:
    """Which half of `A+B` a method can be: A gives its weighting, B its local and server rules."""
    from feddraw.core import brings_training, brings_weighting

    return "A" if not brings_weighting(method) else "B" if not brings_training(method) else "neither"


ASKED = {
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


def needs_of(method: Method) -> str:
    """All that a method looks at, beside the models that it averages."""
    proxy = ["labelled images at the server"] if method.weighting.proxy else []
    needs = [method.weighting.needs, *(ASKED[name] for name in method.asks), *proxy]
    return ", ".join([need for need in needs if need != "nothing"] or ["nothing"])


def models() -> list[dict[str, Any]]:
    from feddraw import catalog
    from feddraw.experiment.method_by_name import defaults_of, without_empty

    return [
        {"name": name, "what": catalog.about("models", name), "settings": without_empty(defaults_of(function))}
        for name, function in catalog.functions("models").items()
    ]


def datasets() -> list[dict[str, Any]]:
    from feddraw.experiment.dataset_by_name import names

    return [{"name": name, "what": what} for name, what in names().items()]


def scenarios() -> list[dict[str, Any]]:
    from feddraw.scenarios.partition import describe_scenario, scenario_names, scenario_options

    return [
        {"name": name, "what": describe_scenario(name), "settings": scenario_options(name)} for name in scenario_names()
    ]

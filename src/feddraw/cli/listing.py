"""`feddraw list`: the methods, models, data sets or scenarios, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from feddraw.cli.terminal import console, print_json, table
from feddraw.errors import UserError, unknown

if TYPE_CHECKING:
    from feddraw.core import Method


def list_(
    kind: Annotated[
        str,
        Argument(help="What to list: methods, models, data or scenarios.", show_default=False),
    ] = "",
    wide: Annotated[
        bool, Option(help="Show all columns, such as what a method needs and its settings.")
    ] = False,
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the methods, models, data sets or scenarios, one line each."""
    lists = {
        "methods": listed_methods,
        "models": listed_models,
        "data": listed_datasets,
        "scenarios": listed_scenarios,
    }
    if not kind:
        raise UserError(f"say what to list: feddraw list {'|'.join(lists)}")
    if kind not in lists:
        raise unknown("lists", kind, lists)
    rows = lists[kind]()
    if json:
        print_json(rows)
        return
    all_columns = list(rows[0])
    columns = all_columns if wide else ["name", "what"]
    cells = [[_listed_cell(row[column]) for column in columns] for row in rows]
    out = console()
    out.print(table(columns, cells, left=len(columns)))
    hidden = [column for column in all_columns if column not in columns]
    if hidden:
        out.print(f"`feddraw list {kind} --wide` adds: {', '.join(hidden)}.")


def _listed_cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def secure_in_words(method: Method) -> str:
    from feddraw.core import secure_sums, why_not_secure

    reason = why_not_secure(method)
    return f"no: {reason}" if reason else {1: "one sum", 2: "two sums"}[secure_sums(method)]


def listed_methods() -> list[dict[str, Any]]:
    from feddraw import catalog
    from feddraw.core import why_not_streaming
    from feddraw.experiment.method_by_name import (
        method_defaults,
        needs_of_method,
        place_in_mixture,
        without_required,
    )

    rows = []
    for name in catalog.names("methods"):
        function = catalog.find("methods", name)
        method = function()
        rows.append(
            {
                "name": name,
                "what": catalog.first_doc_line("methods", name),
                "needs": needs_of_method(method),
                "cost": method.needs.cost,
                "client keeps": ", ".join(method.local.keeps) or "nothing",
                "client sends": ", ".join(["model", *method.sends]),
                "streams": not why_not_streaming(method),
                "secure": secure_in_words(method),
                "in A+B": place_in_mixture(method),
                "settings": without_required(method_defaults(function)),
            }
        )
    return rows


def listed_models() -> list[dict[str, Any]]:
    from feddraw import catalog
    from feddraw.experiment.method_by_name import method_defaults, without_required

    rows = []
    for name, function in catalog.functions_of_kind("models").items():
        settings = without_required(method_defaults(function))
        rows.append(
            {"name": name, "what": catalog.first_doc_line("models", name), "settings": settings}
        )
    return rows


def listed_datasets() -> list[dict[str, Any]]:
    from feddraw.data.dataset_by_name import dataset_names

    return [{"name": name, "what": what} for name, what in dataset_names().items()]


def listed_scenarios() -> list[dict[str, Any]]:
    from feddraw.data.scenarios.scenario_by_name import (
        describe_scenario,
        scenario_names,
        scenario_options,
    )

    names = scenario_names()
    return [
        {"name": name, "what": describe_scenario(name), "settings": scenario_options(name)}
        for name in names
    ]

"""`feddraw check-method`: the properties that every method must have, on a method of one's own."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from feddraw.cli.terminal import console, print_line, table


def check_method(
    method: Annotated[
        str, Argument(help="A method's name, A+B, or package.module:function of your own.")
    ],
    settings: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="A setting of the method.")
    ] = None,
) -> None:
    """Check a method of your own on made-up updates, without training; exit code 1 if it fails."""
    from feddraw.experiment.settings import Experiment, make_method, parse_settings
    from feddraw.server import method_check

    given = {
        f"method.{key.removeprefix('method.')}": value
        for key, value in parse_settings(settings or []).items()
    }
    rule = make_method(Experiment(method=method).with_settings(given))
    properties = method_check.check_method(rule)
    told: dict[str, str] = {}  # what is wrong, and the first property that it breaks
    rows = []
    for row in properties:
        holds = row.wrong or ("yes" if row.applies else "does not apply")
        if row.wrong and told.setdefault(row.wrong, row.name) != row.name:
            holds = f"no, for the same reason as: {told[row.wrong]}"
        rows.append([row.name, holds])
    console().print(table(["property", "holds"], rows))
    failed = [row.name for row in properties if row.wrong]
    if failed:
        print_line(f"{len(failed)} of {len(properties)} properties do not hold: mend these first")
        raise typer.Exit(1)
    for line in method_check.properties_that_apply(rule):
        print_line(line)

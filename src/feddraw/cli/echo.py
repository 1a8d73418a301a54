"""A line on standard output, for commands that have no table to show."""

from __future__ import annotations

import typer

from feddraw import naming


def echo(words: str) -> None:
    typer.echo(naming.line(words))

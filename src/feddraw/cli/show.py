"""How commands show things: tables that look well in a terminal and stay plain in a file or pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table


def console() -> Console:
    """A console that never breaks lines of a file or pipe."""
    terminal = sys.stdout.isatty()
    return Console(highlight=False, width=None if terminal else 200, no_color=None if terminal else True)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> Table:
    """The first columns to the left, numbers to the right."""
    drawn = Table(box=SIMPLE, pad_edge=False)
    for position, name in enumerate(columns):
        drawn.add_column(name, justify="left" if position < left else "right")
    for row in rows:
        drawn.add_row(*row)
    return drawn


def as_json(document: Any) -> None:
    """One document on standard output and nothing else."""
    print(json.dumps(document, indent=2, allow_nan=False))

"""How commands show things: tables that look well in a terminal and stay plain in a file or
pipe.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from feddraw.text import safe_line, safe_text


class PlainConsole(Console):
    """A console for which all text is text: no markup, and nothing in a name that a terminal would
    obey.
    """

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(safe_text(text), **how)


def console(*, stderr: bool = False) -> Console:
    """A console that never breaks lines of a file or pipe."""
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width, colour = (None, None) if terminal else (200, True)
    return PlainConsole(
        highlight=False, markup=False, emoji=False, width=width, no_color=colour, stderr=stderr
    )


def plain_words(text: str) -> Text:
    """For the places where rich would read markup whatever its console says: a status, a bar."""
    return Text(safe_line(text))


@contextmanager
def status_line(doing: str, *, stderr: bool = False) -> Iterator[Callable[[str], None]]:
    """A line that says what is being done until it is done; gives what changes it.

    Only terminals show it.
    """
    with console(stderr=stderr).status(doing) as shown:
        yield lambda now: shown.update(plain_words(now))


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, compact: bool = False
) -> Table:
    """The first columns to the left, numbers to the right; a compact one has less air, to fit 80
    columns.
    """
    drawn = Table(box=SIMPLE, pad_edge=False, collapse_padding=compact, show_edge=not compact)
    for position, name in enumerate(columns):
        drawn.add_column(safe_line(name), justify="left" if position < left else "right")
    for row in rows:
        drawn.add_row(*map(safe_line, row))
    return drawn


def print_json(document: Any) -> None:
    """One document on standard output and nothing else."""
    print(json.dumps(document, indent=2, allow_nan=False))


def print_line(words: str) -> None:
    """A line on standard output, for commands that have no table to show."""
    print(safe_line(words))


def metric_text(value: float | None) -> str:
    return "undefined" if value is None or math.isnan(value) else f"{value:.4f}"

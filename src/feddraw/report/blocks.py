"""What a report is made of, before it becomes a page, a Markdown file or LaTeX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2
    anchor: str = ""


@dataclass(frozen=True)
class Text:
    text: str
    quiet: bool = False


@dataclass(frozen=True)
class Bullets:
    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Cell:
    """A field of a table; `value` is what it is sorted by."""

    text: str
    value: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells, the first of each its name; references stand below, apart from what is compared."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    references: Sequence[Sequence[Cell]] = ()
    note: str = ""
    label: str = ""  # tables with a label are written to LaTeX as well


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure, the name of its files, and what it shows in words."""

    name: str
    figure: Figure
    words: str


@dataclass(frozen=True)
class Gallery:
    pictures: Sequence[Picture]
    note: str = ""


@dataclass(frozen=True)
class Only:
    """Blocks that are shown for one metric or for one scenario only."""

    blocks: Sequence[Block]
    metric: str = ""
    scenario: str = ""


@dataclass(frozen=True)
class Fold:
    """Blocks that a reader opens."""

    title: str
    blocks: Sequence[Block] = field(default=())


Block: TypeAlias = Heading | Text | Bullets | Code | Table | Gallery | Only | Fold


@dataclass(frozen=True)
class Document:
    title: str
    blocks: Sequence[Block]
    scenarios: Sequence[str]


def numeral(value: float, form: str = ".4f", *, best: bool = False) -> Cell:
    """A number, or that there is none."""
    return Cell(format(value, form), value, best) if math.isfinite(value) else Cell("undefined")

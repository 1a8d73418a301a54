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
    lead: bool = False  # the headline, in larger type


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
class Columns:
    """Blocks side by side where the page is wide, one below the other where it is not."""

    blocks: Sequence[Block]


@dataclass(frozen=True)
class Fold:
    """Blocks that a reader opens."""

    title: str
    blocks: Sequence[Block] = field(default=())


Block: TypeAlias = Heading | Text | Bullets | Code | Table | Gallery | Only | Columns | Fold


@dataclass(frozen=True)
class Document:
    title: str
    blocks: Sequence[Block]
    scenarios: Sequence[str]

    @property
    def menu(self) -> list[tuple[Heading, str]]:
        """The main headings that can be linked to, each with the scenario that it is shown for ("": always)."""
        found = []
        for block in self.blocks:
            inside, scenario = (block.blocks, block.scenario) if isinstance(block, Only) else ([block], "")
            found += [(one, scenario) for one in inside if isinstance(one, Heading) and one.anchor and one.level == 2]
        return found


def inside(block: Block) -> Sequence[Block]:
    """The blocks that a block holds."""
    return block.blocks if isinstance(block, Only | Columns | Fold) else ()


def numeral(value: float, form: str = ".4f", *, best: bool = False) -> Cell:
    """A number, or that there is none."""
    return Cell(format(value, form), value, best) if math.isfinite(value) else Cell("undefined")

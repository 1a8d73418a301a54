"""What a report is made of, before it becomes a page, a Markdown file or LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from matplotlib.figure import Figure

LONG_WORDS = 28  # characters after which a column of words is broken into lines
COLUMN_GAP = 2  # characters


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2
    anchor: str = ""  # main headings with an anchor are in the menu


@dataclass(frozen=True)
class Paragraph:
    text: str
    quiet: bool = False
    lead: bool = False  # the headline, in larger type


@dataclass(frozen=True)
class Bullets:
    items: Sequence[str]


@dataclass(frozen=True)
class CodeBlock:
    text: str


@dataclass(frozen=True)
class Cell:
    """A field of a table; `value` is what it is sorted by."""

    text: str
    value: float | None = None
    best: bool = False


Rows: TypeAlias = Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class ReportTable:
    """Rows of cells, the first of each its name; references stand below, apart from what is
    compared.
    """

    caption: str
    header: Sequence[str]
    rows: Rows
    references: Rows = ()
    note: str = ""
    label: str = ""  # tables with a label are written to LaTeX as well
    # headings above the header, from its second column on, and how many columns each is above
    spans: Sequence[tuple[str, int]] = ()

    @property
    def width(self) -> int:
        """About how many characters a row takes; words may be broken, numbers may not."""
        return self._width_of(range(len(self.header)))

    def _width_of(self, columns: Sequence[int]) -> int:
        return sum(map(self._column_width, columns))

    def _column_width(self, column: int) -> int:
        cells = [row[column] for row in (*self.rows, *self.references) if column < len(row)]
        lengths = [len(cell.text) + 2 * cell.best for cell in cells]  # the best has a star
        longest = max([len(self.header[column]), *lengths])
        if not any(cell.value is not None for cell in cells):
            longest = min(longest, LONG_WORDS)
        return COLUMN_GAP + longest

    def in_blocks(self, width: int) -> list[ReportTable]:
        """The same as several tables below one another, each with the first column, where it is
        wider than that many characters. Columns below one heading stay together.
        """
        if self.width <= width or len(self.header) < 4:
            return [self]
        widest = width - self._column_width(0)
        blocks: list[list[_Unit]] = [[]]
        used = 0
        for unit in self._units():
            needed = self._width_of(unit.columns)
            if used + needed > widest and blocks[-1]:
                blocks.append([])
                used = 0
            blocks[-1].append(unit)
            used += needed
        return [self._block(units, number, len(blocks)) for number, units in enumerate(blocks, 1)]

    def _units(self) -> Iterator[_Unit]:
        """The columns after the first: those below one heading together, others one by one."""
        spans = self.spans or [("", 1)] * (len(self.header) - 1)
        start = 1
        for heading, size in spans:
            yield _Unit(heading, range(start, start + size))
            start += size

    def _block(self, units: Sequence[_Unit], number: int, count: int) -> ReportTable:
        """The table with the first column and those of some units: one of `count` tables."""
        columns = [0, *(column for unit in units for column in unit.columns)]

        def chosen(rows: Rows) -> list[list[Cell]]:
            return [[row[column] for column in columns] for row in rows]

        return replace(
            self,
            caption=f"{self.caption} ({number} of {count})",
            header=[self.header[column] for column in columns],
            rows=chosen(self.rows),
            references=chosen(self.references),
            note=self.note if number == count else "",
            label=f"{self.label}-{number}" if self.label else "",
            spans=[(unit.heading, len(unit.columns)) for unit in units] if self.spans else (),
        )


@dataclass(frozen=True)
class _Unit:
    """Columns of a table that are not torn apart."""

    heading: str
    columns: range


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure, the name of its files, and what it shows in words."""

    name: str
    figure: Figure
    words: str
    method: str = ""  # that alone it shows, where it does


@dataclass(frozen=True)
class Gallery:
    pictures: Sequence[Picture]
    note: str = ""


@dataclass(frozen=True)
class OnlyFor:
    """Blocks that are shown for one metric, one scenario or one method only."""

    blocks: Sequence[Block]
    metric: str = ""
    scenario: str = ""
    method: str = ""


@dataclass(frozen=True)
class SideBySide:
    """Blocks side by side where the page is wide, one below the other where it is not."""

    blocks: Sequence[Block]


@dataclass(frozen=True)
class Fold:
    """Blocks that a reader opens."""

    title: str
    blocks: Sequence[Block]


Block: TypeAlias = (
    Heading | Paragraph | Bullets | CodeBlock | ReportTable | Gallery | OnlyFor | SideBySide | Fold
)


@dataclass(frozen=True)
class ReportDocument:
    title: str
    blocks: Sequence[Block]
    scenarios: Sequence[str]
    methods: Sequence[str] = ()  # by which a reader may filter
    metrics: Mapping[str, str] = field(default_factory=dict)  # that a reader chooses from: labels

    @property
    def menu(self) -> list[tuple[Heading, str]]:
        """The main headings that can be linked to, each with the scenario that it is shown for ("":
        always).
        """
        entries = []
        for block in self.blocks:
            if isinstance(block, OnlyFor):
                inner = block.blocks
                scenario = block.scenario
            else:
                inner = [block]
                scenario = ""
            for heading in inner:
                if isinstance(heading, Heading) and heading.anchor and heading.level == 2:
                    entries.append((heading, scenario))
        return entries


def blocks_and_inner(blocks: Sequence[Block]) -> Iterator[Block]:
    """These blocks and all that are inside them, in the order of the page."""
    for block in blocks:
        yield block
        if isinstance(block, OnlyFor | SideBySide | Fold):
            yield from blocks_and_inner(block.blocks)


def all_pictures(blocks: Sequence[Block]) -> list[Picture]:
    """Those of these blocks and of all that are inside them."""
    galleries = [block for block in blocks_and_inner(blocks) if isinstance(block, Gallery)]
    return [picture for gallery in galleries for picture in gallery.pictures]

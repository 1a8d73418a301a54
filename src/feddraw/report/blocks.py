"""What a report is made of, before it becomes a page, a Markdown file or LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from matplotlib.figure import Figure

LONG_WORDS = 28  # characters after which a column of words is broken into lines


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2
    anchor: str = ""


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


@dataclass(frozen=True)
class ReportTable:
    """Rows of cells, the first of each its name; references stand below, apart from what is
    compared.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    references: Sequence[Sequence[Cell]] = ()
    note: str = ""
    label: str = ""  # tables with a label are written to LaTeX as well
    spans: Sequence[
        tuple[str, int]
    ] = ()  # headings above the header from its second column on, with their widths

    @property
    def width(self) -> int:
        """About how many characters a row takes; words may be broken, numbers may not."""
        return sum(map(self._column_width, range(len(self.header))))

    def _column_width(self, place: int) -> int:
        cells = [row[place] for row in (*self.rows, *self.references) if place < len(row)]
        longest = max(
            [len(self.header[place]), *(len(cell.text) + 2 * cell.best for cell in cells)]
        )
        return 2 + (
            longest if any(cell.value is not None for cell in cells) else min(longest, LONG_WORDS)
        )

    def in_blocks(self, width: int) -> list[ReportTable]:
        """The same as several tables below one another, each with the first column, where it is
        wider than that.
        """
        if self.width <= width or len(self.header) < 4:
            return [self]
        units = [span for _, span in self.spans] or [1] * (len(self.header) - 1)
        parts: list[list[tuple[int, int, int]]] = [[]]
        ends, room = 1, width - self._column_width(0)
        left = room
        for unit, size in enumerate(units):
            needed = sum(map(self._column_width, range(ends, ends + size)))
            if needed > left and parts[-1]:
                parts, left = [*parts, []], room
            parts[-1].append((unit, ends, size))
            ends, left = ends + size, left - needed
        return [self._block(part, number, len(parts)) for number, part in enumerate(parts)]

    def _block(self, part: Sequence[tuple[int, int, int]], number: int, count: int) -> ReportTable:
        columns = [0, *(place for _, start, size in part for place in range(start, start + size))]

        def cut(rows: Sequence[Sequence[Cell]]) -> list[list[Cell]]:
            return [[row[place] for place in columns] for row in rows]

        return replace(
            self,
            caption=f"{self.caption} ({number + 1} of {count})",
            header=[self.header[place] for place in columns],
            rows=cut(self.rows),
            references=cut(self.references),
            note=self.note if number == count - 1 else "",
            label=f"{self.label}-{number + 1}" if self.label else "",
            spans=[self.spans[unit] for unit, _, _ in part] if self.spans else (),
        )


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
class OnlyFor:
    """Blocks that are shown for one metric or for one scenario only."""

    blocks: Sequence[Block]
    metric: str = ""
    scenario: str = ""


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

    @property
    def menu(self) -> list[tuple[Heading, str]]:
        """The main headings that can be linked to, each with the scenario that it is shown for ("":
        always).
        """
        found = []
        for block in self.blocks:
            inside, scenario = (
                (block.blocks, block.scenario) if isinstance(block, OnlyFor) else ([block], "")
            )
            found += [
                (one, scenario)
                for one in inside
                if isinstance(one, Heading) and one.anchor and one.level == 2
            ]
        return found


def blocks_and_inner(blocks: Sequence[Block]) -> Iterator[Block]:
    """These blocks and all that are inside them, in the order of the page."""
    for block in blocks:
        yield block
        if isinstance(block, OnlyFor | SideBySide | Fold):
            yield from blocks_and_inner(block.blocks)

"""A column of a table that names the class of each image, read as one column of labels per class:
present for the class that it names, absent for all others, unknown where it is blank.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from feddraw.data.finding_names import FindingChoice, listed_findings
from feddraw.data.label_cells import ABSENT, BLANK, CELL_WORDS, PRESENT, ColumnCells
from feddraw.errors import UserError

MOST_CLASSES = 50
MOST_GRADE = 20  # the largest of the small whole numbers that may be classes
# Decimals that are zero; three of them may be thousands, 1,000 or 1.000, and stay as they are.
_WHOLE = re.compile(r"[+-]?\d+(?:[.,]00?|\.0{4,})?")


@dataclass(frozen=True)
class ClassColumn:
    """Which column names the class of each image, and the classes in the order of the outputs."""

    name: str
    classes: tuple[str, ...]


@dataclass
class ClassCells(ColumnCells):
    """The class column as the labels of one class."""

    of_class: str = ""
    classes: frozenset[str] = frozenset()

    problem: ClassVar[str] = "with a class that is not among data.classes"

    def read(self, text: str) -> int | None:
        name = class_name(text)
        if not name:
            return BLANK
        if name not in self.classes:
            return None
        return PRESENT if name == self.of_class else ABSENT

    def unusual_entries(self) -> str:
        return ""


def class_name(text: str) -> str:
    """As a cell has it, in one spelling; empty for a blank. A whole number has no decimals: some
    programs write 2.0 where a column has gaps.
    """
    word = unicodedata.normalize("NFC", text.strip())
    if CELL_WORDS.get(word.lower()) == BLANK:
        return ""
    return str(int(float(word.replace(",", ".")))) if _WHOLE.fullmatch(word) else word


def names_in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Numbers by size, words by the alphabet."""
    every = sorted(set(names), key=lambda name: (name.casefold(), name))
    if all(map(_WHOLE.fullmatch, every)):
        every.sort(key=int)
    return tuple(every)


def chosen_classes(
    column: str, classes: FindingChoice, cells: Sequence[ColumnCells]
) -> ClassColumn:
    """The classes as they are listed, or all that the tables' cells name."""
    if classes != "all":
        listed = tuple(map(class_name, listed_findings(classes)))
        if twice := sorted({name for name in listed if listed.count(name) > 1}):
            raise UserError(f"data.classes lists {twice[0]} twice")
        if len(listed) < 2:
            raise UserError(f"data.classes must list two classes or more, not {', '.join(listed)}")
        return ClassColumn(column, listed)
    names = names_in_order(
        name for of_table in cells for word in of_table.values if (name := class_name(word))
    )
    if any(of_table.others for of_table in cells) or not 2 <= len(names) <= MOST_CLASSES:
        count = f"more than {MOST_CLASSES}" if len(names) > MOST_CLASSES else str(len(names))
        raise UserError(
            f"the column {column} names {count} classes: it needs 2 to {MOST_CLASSES}"
            " (data.class_column)"
        )
    _refuse_two_spellings(column, names)
    return ClassColumn(column, names)


def _refuse_two_spellings(column: str, names: Sequence[str]) -> None:
    """Capitals and blanks do not make a class."""
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(" ".join(name.replace("_", " ").split()).casefold(), name)
        if first != name:
            raise UserError(
                f"'{first}' and '{name}' in the column {column} look like one class: write both"
                " alike, or list data.classes in an experiment file"
            )


def why_no_classes(cells: ColumnCells) -> str:
    """Why a column does not look like one of classes; empty if it does: two to fifty words or small
    whole numbers, most of them repeated.
    """
    names = [class_name(word) for word in cells.values]
    counts = {name: 0 for name in names if name}
    for word, count in cells.values.items():
        if name := class_name(word):
            counts[name] += count
    if cells.others or len(counts) > MOST_CLASSES:
        return f"has more than {MOST_CLASSES} different entries"
    if len(counts) < 2:
        return "has one entry only" if counts else "is blank in every row"
    if sum(counts.values()) < 2 * len(counts):
        return "has entries that are hardly ever repeated"
    if any(re.search(r"[|;]", name) for name in counts):
        return "names several findings in a cell"
    return _why_no_grades(list(counts)) if any(map(_is_number, counts)) else ""


def _why_no_grades(names: Sequence[str]) -> str:
    """Why names, of which some are numbers, are no small whole numbers; empty if they are."""
    if not all(map(_is_number, names)):
        return "holds numbers and words"
    if not all(map(_WHOLE.fullmatch, names)):
        return "holds numbers that are not whole"
    numbers = sorted(map(int, names))
    if numbers[0] not in (0, 1) or numbers[-1] > MOST_GRADE:
        return "holds numbers that are no small grades from 0 or 1"
    return "holds numbers with gaps" if 2 * len(numbers) <= numbers[-1] else ""


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True

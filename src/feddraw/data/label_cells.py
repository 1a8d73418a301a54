"""What a cell of a label table says: present, absent, uncertain, or nothing; and whether a column
holds such cells.

Only what can be read in one way is read. A column of 1 and 2 may code yes and no or no and yes, so
it is named and left to the user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from feddraw.errors import UserError, one_of, unknown

PRESENT, ABSENT, UNCERTAIN, BLANK = 1, 0, -1, -2
NO_COLUMN = -3  # of a finding that a table lacks: unknown, however blank cells are read
LABELS_IN_WORDS = {
    PRESENT: "present",
    ABSENT: "absent",
    UNCERTAIN: "uncertain",
    BLANK: "blank",
}
CELL_WORDS = {
    **dict.fromkeys(("yes", "y", "true", "positive", "pos", "present"), PRESENT),
    **dict.fromkeys(("ja", "j", "oui", "wahr", "vrai", "positiv"), PRESENT),
    **dict.fromkeys(("no", "n", "false", "negative", "neg", "absent"), ABSENT),
    **dict.fromkeys(("nein", "non", "falsch", "faux", "negativ"), ABSENT),
    **dict.fromkeys(
        ("uncertain", "u", "?", "equivocal", "indeterminate", "possible", "fraglich", "unklar"),
        UNCERTAIN,
    ),
    **dict.fromkeys(("", "nan", "na", "n/a", "#n/a", "<na>", "null", "unknown", "missing"), BLANK),
}

CELL_MEANINGS = ("unknown", "negative", "positive")
TICKS = ("x", "+", "✓", "✔", "☒", "☑")  # present, where a blank is absent: never guessed
CellPolicy = str | Mapping[str, str] | None  # one meaning for all findings, or one each

# share of filled cells that must be labels for a column to be a finding; others are mistakes
READABLE_CELLS = 0.9
MOST_CELL_VALUES = 51  # different entries of a column that are counted: more are no classes


def label_in_cell(text: str, two_is_present: bool = False) -> int | None:
    """PRESENT, ABSENT, UNCERTAIN or BLANK; nothing for what is no label."""
    word = text.strip().lower()
    if word in CELL_WORDS:
        return CELL_WORDS[word]
    number = _number(word)
    if two_is_present and number == 2:
        return PRESENT
    return int(number) if number is not None and number in (PRESENT, ABSENT, UNCERTAIN) else None


def label_in_numeric_cell(text: str) -> int | None:
    """The same for archives that write numbers only."""
    word = text.strip().lower()
    if word in ("", "nan") or _number(word) is not None:
        return label_in_cell(word)
    return None


@dataclass
class ColumnCells:
    """What is in a column of a table, counted."""

    name: str
    # the first MOST_CELL_VALUES different entries, as written
    values: Counter[str] = field(default_factory=Counter)
    others: int = 0  # cells with other entries

    problem: ClassVar[str] = "with a value that is not a label"  # of a row whose cell is none

    def add(self, text: str) -> None:
        word = text.strip()
        if word in self.values or len(self.values) < MOST_CELL_VALUES:
            self.values[word] += 1
        else:
            self.others += 1

    @property
    def filled(self) -> dict[str, int]:
        """The entries that are not blank, the most frequent first."""
        return {
            word: count for word, count in self.values.most_common() if label_in_cell(word) != BLANK
        }

    @property
    def two_is_present(self) -> bool:
        """Whether 0 and 2 are the column's only numbers: 0 is then absent in any reading."""
        numbers = {value for value in map(_number, self.filled) if value is not None}
        return numbers - {-1.0} == {0.0, 2.0} and not self.others

    def read(self, text: str) -> int | None:
        return label_in_cell(text, self.two_is_present)

    def why_no_labels(self) -> str:
        """Why this is no column of labels; nothing if it is one."""
        filled = self.filled
        total = sum(filled.values()) + self.others
        if not total:
            return "blank in every row"
        unreadable = [word for word in filled if self.read(word) is None]
        readable = sum(count for word, count in filled.items() if word not in unreadable)
        if readable >= READABLE_CELLS * total:
            return ""
        numbers = {value for value in map(_number, filled) if value is not None}
        only_numbers = all(_number(word) is not None for word in filled)
        if numbers == {1.0, 2.0} and only_numbers:
            return "holds 1 and 2, and either may be present: write 1 and 0"
        if readable >= total / 2:
            some = ", ".join(f"'{word[:20]}'" for word in unreadable[:3])
            such_as = f", such as {some}" if some else ""
            return f"{total - readable:,} of {total:,} entries are not labels{such_as}"
        if all(word.casefold() in TICKS for word in filled):
            ticks = ", ".join(f"'{word}'" for word in filled)
            return f"holds {ticks} or nothing: write 1 and 0 if it is a finding"
        first = ", ".join(f"'{word[:20]}'" for word in list(filled)[:3])
        return f"holds {first}, …" if len(filled) > 3 else f"holds {first}"

    def unusual_entries(self) -> str:
        """How entries other than 0, 1, -1 and blank are read; nothing where there are none."""
        readings = []
        for word in self.filled | {word: 0 for word in self.values if word}:
            label = self.read(word)
            if label is not None and _number(word) not in (0.0, 1.0, -1.0):
                readings.append(f"'{word}' as {LABELS_IN_WORDS[label]}")
        return ", ".join(readings)


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "."))  # some spreadsheets write 1,0
    except ValueError:
        return None


def cell_meanings(
    option: str, policy: CellPolicy, findings: Sequence[str], usual: Mapping[str, str]
) -> dict[str, str]:
    """What such a cell counts as, for each finding: as the user says, else as usual."""
    option = f"data.{option}"
    if isinstance(policy, str):
        one_of(option, policy, CELL_MEANINGS)
        chosen = dict.fromkeys(findings, policy)
    elif policy is None or isinstance(policy, Mapping):
        chosen = dict(policy or {})
    else:
        raise UserError(
            f"{option} must be unknown, negative or positive, or one of them for each finding:"
            f" {policy!r}"
        )
    for name, word in chosen.items():
        if not isinstance(word, str):
            raise UserError(f"{option}.{name} must be unknown, negative or positive, not {word!r}")
        if name not in findings:
            raise unknown("findings", name, findings)
    meanings = {name: chosen.get(name, usual.get(name, "unknown")) for name in findings}
    for name, word in meanings.items():
        one_of(f"{option}.{name}", word, CELL_MEANINGS)
    return meanings


def labels_from_cells(
    marks: NDArray[np.int8],
    findings: Sequence[str],
    blank: Mapping[str, str],
    uncertain: Mapping[str, str],
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Labels (0 where unknown) and whether each is known, both (images, findings)."""
    values = marks == PRESENT
    known = marks != NO_COLUMN
    for mark, option, meanings in (
        (BLANK, "blank", blank),
        (UNCERTAIN, "uncertain", uncertain),
    ):
        for name in findings:  # any other word would make negatives of unknown labels
            one_of(f"{option}.{name}", meanings[name], CELL_MEANINGS)
        marked = marks == mark
        as_positive = np.array([meanings[name] == "positive" for name in findings], dtype=bool)
        as_unknown = np.array([meanings[name] == "unknown" for name in findings], dtype=bool)
        values |= marked & as_positive
        known &= ~(marked & as_unknown)
    return values.astype(np.uint8), known

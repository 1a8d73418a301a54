"""Subgroups of images, such as by sex, age band or view: which columns of a table tell them, and
how their entries are read.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from feddraw.errors import UserError
from feddraw.text import plain_name

# What columns of a kind are called, as `plain_name` spells them: one word means them in all tables.
USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "sex": ("sex", "gender", "patientsex", "patientgender", "geschlecht"),
    "age": ("age", "patientage", "ageatstudy", "ageyears", "alter", "patientenalter"),
    "view": ("view", "viewposition", "projection", "ap/pa", "frontal/lateral", "aufnahme"),
}
AGE_CUTS = (18.0, 40.0, 65.0)  # years, where the user names none
MOST_VALUES = 20  # of a column whose values the user does not name
TAKEN_NAMES = ("site", "client")  # that results by site and by client have
OTHER = "other"  # entries that are not among the values that the user names
NOT_STATED = -1  # where a cell is blank, or no number in a column that is cut into bands
BLANK_WORDS = ("", "na", "n/a", "nan", "none", "null", "?", "unknown")
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([ymwd]?)")
YEARS: Mapping[str, float] = {"": 1, "y": 1, "m": 1 / 12, "w": 7 / 365.25, "d": 1 / 365.25}

Numbers = NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Subgrouping:
    """Which subgroup each image belongs to."""

    name: str
    values: tuple[str, ...]
    of_image: Numbers  # the place among the values; NOT_STATED where it is not known

    def take(self, rows: NDArray[np.intp]) -> Subgrouping:
        """The same for some of the images."""
        return replace(self, of_image=self.of_image[rows])

    @staticmethod
    def of_text(name: str, entries: NDArray[np.str_]) -> Subgrouping:
        """Every entry is a value, in the order of their names."""
        values, places = np.unique(entries, return_inverse=True)
        return Subgrouping(name, tuple(values.tolist()), places.astype(np.int16))


@dataclass(frozen=True)
class SubgroupColumn:
    """A column that the user names, and how its entries become subgroups."""

    name: str
    values: tuple[str, ...] = ()  # empty: those that the column has
    cuts: tuple[float, ...] = ()  # where bands of numbers begin, in ascending order

    @property
    def agreed(self) -> bool:
        """Whether the subgroups are known before a table is read, so that sites mean the same."""
        return bool(self.values or self.cuts)

    @property
    def labels(self) -> tuple[str, ...]:
        """The subgroups, where they are agreed."""
        if self.cuts:
            return _band_labels(self.cuts)
        return (*self.values, OTHER) if self.values else ()

    def place(self, header: Sequence[str]) -> int | None:
        """Of the column in a table: by its name, or by a usual one for this word."""
        if self.name in header:
            return header.index(self.name)
        plain = [plain_name(name) for name in header]
        return next((plain.index(name) for name in self.found_as if name in plain), None)

    @property
    def found_as(self) -> tuple[str, ...]:
        """What the column may be called in a table, as `plain_name` spells it."""
        plain = plain_name(self.name)
        return USUAL_NAMES.get(plain, (plain,))

    def subgroups(self, cells: Sequence[str]) -> Subgrouping:
        """Of all images, by the cells of the column."""
        entries = [unicodedata.normalize("NFC", cell.strip()) for cell in cells]
        if self.cuts:
            return Subgrouping(self.name, self.labels, self._bands(entries))
        values = self.labels or self._values_there(entries)
        places = {value.casefold(): number for number, value in enumerate(values)}
        others = places.get(OTHER, NOT_STATED)
        numbers = [
            NOT_STATED if _is_blank(entry) else places.get(entry.casefold(), others)
            for entry in entries
        ]
        return Subgrouping(self.name, values, np.array(numbers, dtype=np.int16))

    def _values_there(self, entries: Iterable[str]) -> tuple[str, ...]:
        spellings: dict[str, str] = {}
        for entry in sorted(set(entries)):
            if not _is_blank(entry):
                spellings.setdefault(entry.casefold(), entry)
        if len(spellings) > MOST_VALUES:
            raise UserError(
                f"the column {self.name} has {len(spellings):,} different entries, too many for"
                f" subgroups: name those that count, or where bands of numbers begin"
                f' (data.subgroups = "{self.name}: 40, 65")'
            )
        return tuple(spellings.values())

    def _bands(self, entries: Sequence[str]) -> Numbers:
        years = np.array([_number(entry) for entry in entries], dtype=np.float64)
        bands = np.searchsorted(np.array(self.cuts), years, side="right")
        return np.where(np.isnan(years), NOT_STATED, bands).astype(np.int16)


def read_subgroup_columns(setting: str) -> tuple[SubgroupColumn, ...]:
    """What `data.subgroups` names: columns with semicolons between them, each alone ("view"), with
    the values that count ("sex: F, M") or with where bands begin ("age: 40, 65").
    """
    if not isinstance(setting, str):
        raise UserError(
            f'data.subgroups names columns, such as "sex: F, M; age: 40, 65; view", not {setting!r}'
        )
    columns = tuple(_subgroup_column(entry) for entry in setting.split(";") if entry.strip())
    for first, second in combinations(columns, 2):
        if not set(first.found_as).isdisjoint(second.found_as):
            # bands that differ by one year would tell who is of that age
            raise UserError(
                f"data.subgroups names {first.name} twice"
                + (f", also as {second.name}" if second.name != first.name else "")
            )
    return columns


def subgroup_places(
    columns: Sequence[SubgroupColumn], tables: Mapping[str, Sequence[str]]
) -> dict[str, list[int | None]]:
    """Where the columns are, by table, of which the headers are given; a column that none has is
    refused.
    """
    places = {
        table: [column.place(header) for column in columns] for table, header in tables.items()
    }
    for number, column in enumerate(columns):
        if all(of_table[number] is None for of_table in places.values()):
            table, header = next(iter(tables.items()))
            raise UserError(
                f"{table} has no column {column.name} (data.subgroups); it has {', '.join(header)}"
            )
    return places


def subgroup_cells(cells: Sequence[str], places: Sequence[int | None]) -> list[str]:
    """What a row says; nothing where its table lacks the column."""
    return ["" if place is None else cells[place] for place in places]


def _subgroup_column(entry: str) -> SubgroupColumn:
    name, _, listed = entry.partition(":")
    name = name.strip()
    values = tuple(value.strip() for value in listed.split(",") if value.strip())
    if not name:
        raise UserError(f"data.subgroups: {entry.strip()!r} names no column")
    if plain_name(name) in TAKEN_NAMES:
        raise UserError(
            f"data.subgroups cannot name {name}: results by site and by client are called so, and"
            " come without it; for something else give the column another name"
        )
    if not values:
        is_age = plain_name(name) in USUAL_NAMES["age"]
        return SubgroupColumn(name, cuts=AGE_CUTS if is_age else ())
    numbers = tuple(_number(value) for value in values)
    if not all(math.isfinite(number) for number in numbers):
        if len({value.casefold() for value in values}) < len(values):
            raise UserError(f"data.subgroups names a value of {name} twice")
        if any(value.casefold() == OTHER for value in values):
            raise UserError(
                f"data.subgroups: leave out {OTHER!r} among the values of {name}, all that are not"
                " named are called so"
            )
        return SubgroupColumn(name, values=values)
    if any(high <= low for low, high in pairwise(numbers)):
        raise UserError(f"data.subgroups: the bands of {name} must begin at ascending numbers")
    return SubgroupColumn(name, cuts=numbers)


def _band_labels(cuts: Sequence[float]) -> tuple[str, ...]:
    inner = [f"{low:g} to under {high:g}" for low, high in pairwise(cuts)]
    return (f"under {cuts[0]:g}", *inner, f"{cuts[-1]:g} and over")


def _number(entry: str) -> float:
    """A number; ages may have the unit that DICOM writes behind them ("058Y" is 58, "006M" half a
    year).
    """
    match = _AGE.fullmatch(entry.strip().lower())
    return math.nan if match is None else float(match[1]) * YEARS[match[2]]


def _is_blank(entry: str) -> bool:
    return entry.lower() in BLANK_WORDS

"""What two trees' documents differ in, and by how much, read through the table of renames."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from artefacts import MODEL_SECTIONS, ArrayMark, Document, cases_in, read_arrays, read_document
from numpy.typing import NDArray
from renames import Renames

Path_ = tuple[str, ...]
Leaves = dict[Path_, Any]
BASE_ONLY, HERE_ONLY = "only in base", "only here"


@dataclass(frozen=True)
class Difference:
    """One place in which the trees differ."""

    case: str
    path: str
    amount: float  # largest absolute difference; infinite where it is none of numbers
    said: str
    why: str = ""  # the explanation that covers it; empty: there is none

    def __str__(self) -> str:
        return f"{self.case}: {self.path}: {self.said}"


@dataclass
class PartResult:
    """What was found in all cases of a part."""

    cases: int = 0
    refused: int = 0  # by both trees: a method that cannot
    models: int = 0  # compared by SHA-256
    values: int = 0
    differences: list[Difference] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # cases that ended in an error in either tree
    base_only: list[str] = field(default_factory=list)
    here_only: list[str] = field(default_factory=list)
    moved_out: list[str] = field(default_factory=list)  # of those, the ones that the table explains

    @property
    def unexplained(self) -> list[Difference]:
        return [difference for difference in self.differences if not difference.why]

    @property
    def failed(self) -> bool:
        return bool(self.unexplained or self.errors or set(self.base_only) - set(self.moved_out))


@dataclass
class Comparison:
    """What was found in all parts, and which former names the present tree still writes."""

    parts: dict[str, PartResult] = field(default_factory=dict)
    former_names: Counter[str] = field(default_factory=Counter)

    @property
    def failed(self) -> bool:
        return any(part.failed for part in self.parts.values())


def compare_folders(base: Path, here: Path, names: Renames) -> Comparison:
    """Compare all cases that two trees produced."""
    found = Comparison()
    in_base, in_here = set(cases_in(base)), set(cases_in(here))
    for case in sorted(in_base | in_here):
        part = found.parts.setdefault(case.partition("/")[0], PartResult())
        if case not in in_here:
            part.base_only.append(case)
            if _names_moved_out(case, names) or names.explanation(case, "absent"):
                part.moved_out.append(case)
        elif case not in in_base:
            part.here_only.append(case)
        else:
            _compare_case(case, base, here, part, found.former_names, names)
    return found


def _names_moved_out(case: str, names: Renames) -> bool:
    """Whether a case is of a method that left the catalogue: `serial/A+B`, `settings/A.mu`."""
    method = case.partition("/")[2].split(".")[0].split(" ")[0]
    return names.names_moved_out(method)


def _compare_case(
    case: str,
    base: Path,
    here: Path,
    part: PartResult,
    former_names: Counter[str],
    names: Renames,
) -> None:
    documents = [read_document(folder, case) for folder in (base, here)]
    part.cases += 1
    part.refused += all("refused" in document for document in documents)
    part.models += sum(section in documents[1] for section in MODEL_SECTIONS)
    for where, document in zip(("base", "here"), documents, strict=True):
        part.errors += [f"{case}: {where}: {document['error']}"] if "error" in document else []
    if ("refused" in documents[0]) != ("refused" in documents[1]):
        part.differences.append(_refused_by_one(case, *documents, names))
        return
    arrays = Arrays(base, here, case)
    first, second = (present_leaves(document, names) for document in documents)
    former_names.update(former_names_in(documents[1], names))
    part.values += len(second)
    for path, amount, said in compare_leaves(first, second, arrays):
        place = ".".join(path)
        why = names.explanation(case, place, amount)
        gone = next((step for step in path if names.names_moved_out(step)), "")
        if not why and said.startswith(BASE_ONLY) and gone:
            why = f"{gone} left the catalogue"
        part.differences.append(Difference(case, place, amount, said, why))


def _refused_by_one(case: str, base: Document, here: Document, names: Renames) -> Difference:
    """One difference in place of all that is missing: a tree refuses what the other does."""
    side, refusing = ("base", base) if "refused" in base else ("here", here)
    said = f"refused by {side} only: {refusing.get('words', {}).get('refused', '')}"
    return Difference(case, "refused", math.inf, said, names.explanation(case, "refused"))


class Arrays:
    """The arrays of one case in both trees, read when they are first asked for."""

    def __init__(self, base: Path, here: Path, case: str) -> None:
        self._folders, self._case = (base, here), case
        self._found: list[Any] = []

    def pair(self, one: ArrayMark, other: ArrayMark) -> tuple[NDArray[Any], NDArray[Any]]:
        if not self._found:
            self._found = [read_arrays(folder, self._case) for folder in self._folders]
        return self._found[0][one.key], self._found[1][other.key]


def leaves_of(document: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Every number, word and array with its path; an empty dict or list is a leaf too."""
    if isinstance(document, dict | list) and document:
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in items:
            yield from leaves_of(value, (*path, str(key)))
    else:
        yield path, document


def present_leaves(document: Document, names: Renames) -> Leaves:
    """All leaves of a document by present names."""
    paths = ((names.present_path(path), value) for path, value in leaves_of(document) if path)
    return {path: names.present_value(path, value) for path, value in paths}


def former_names_in(document: Document, names: Renames) -> set[str]:
    """The former names that a document still has."""
    found = set()
    for path, value in leaves_of(document):
        if not path:
            continue
        present = names.present_path(path)
        if present != path:
            found.add(".".join(path[:1] + path[-1:]))
        if (word := names.present_value(present, value)) is not value and word != value:
            found.add(f"{path[0]}.{path[-1]} = '{str(value).partition(':')[0]}'")
    return found


def compare_leaves(
    base: Leaves, here: Leaves, arrays: Arrays | None = None
) -> Iterator[tuple[Path_, float, str]]:
    """Path, amount and words of every difference."""
    for path in [*base, *(path for path in here if path not in base)]:
        if path not in here:
            yield path, math.inf, f"{BASE_ONLY}: {_shown(base[path])}"
        elif path not in base:
            yield path, math.inf, f"{HERE_ONLY}: {_shown(here[path])}"
        elif (found := _leaf_difference(base[path], here[path], arrays)) is not None:
            yield path, *found


def _leaf_difference(one: Any, other: Any, arrays: Arrays | None) -> tuple[float, str] | None:
    if isinstance(one, ArrayMark) and isinstance(other, ArrayMark):
        if one.same_as(other):
            return None
        if arrays is None or (one.dtype, one.shape) != (other.dtype, other.shape):
            return math.inf, f"{_shown(one)} became {_shown(other)}"
        return array_difference(*arrays.pair(one, other))
    if _is_number(one) and _is_number(other):
        if one == other or (
            math.isnan(one) and math.isnan(other)
        ):  # not a number twice is the same
            return None
        amount = abs(other - one)
        return (
            math.inf if math.isnan(amount) else amount
        ), f"{one!r} became {other!r} ({other - one:+.3g})"
    same = type(one) is type(other) and one == other
    return None if same else (math.inf, f"{_shown(one)} became {_shown(other)}")


def array_difference(one: NDArray[Any], other: NDArray[Any]) -> tuple[float, str]:
    """How far two arrays of one shape and type differ at most, and in how many elements."""
    same = (one == other) | (_not_a_number(one) & _not_a_number(other))
    count = int(np.count_nonzero(~same))
    if not count:
        return 0.0, "the same numbers in other bits (a zero's sign, or another not-a-number)"
    if one.dtype.kind not in "fiub":
        return math.inf, f"{count} of {one.size} elements differ"
    with np.errstate(all="ignore"):
        gaps = np.abs(other[~same].astype(np.float64) - one[~same].astype(np.float64))
        scale = np.abs(one[~same].astype(np.float64))
        relative = gaps / np.where(scale > 0, scale, np.nan)
    amount = math.inf if np.isnan(gaps).any() else float(gaps.max())
    part = np.nanmax(relative) if np.isfinite(relative).any() else math.nan
    return (
        amount,
        f"{count} of {one.size} elements differ, by at most {amount:.3g} (relative {part:.3g})",
    )


def _not_a_number(array: NDArray[Any]) -> NDArray[np.bool_]:
    return np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    if isinstance(value, ArrayMark):
        return f"{value.dtype}{list(value.shape)} {value.sha256[:12]}"
    text = repr(value)
    return text if len(text) <= 70 else f"{text[:67]}…"

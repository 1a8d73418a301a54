"""Which repeats (seeds, folds) are compared: only those that all methods of a scenario have.

A mean over seeds 0 to 4 beside a mean over seed 0 alone compares seeds, not methods. So every mean,
rank, interval and sentence about several methods asks this file which repeats count, and says which
do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from feddraw.errors import UserError
from feddraw.text import grouped, join_names

RepeatRow = tuple[str, str, str, float]  # scenario, method, repeat (seed, fold) and value


@dataclass(frozen=True)
class Pairing:
    """The repeats of one scenario, divided into those that all methods have and the others."""

    methods: tuple[str, ...]  # that have a value in any repeat
    repeats: tuple[str, ...]  # that all of them have: these count
    uncounted: Mapping[str, tuple[str, ...]]  # by every other repeat, the methods that have it

    def uncounted_in_words(self, repeat_name: str = "seed") -> Iterator[str]:
        """Which values are not counted, and for whose sake."""
        repeats_by_methods = grouped((having, repeat) for repeat, having in self.uncounted.items())
        for having, repeats in repeats_by_methods.items():
            lacking = [method for method in self.methods if method not in having]
            yield (
                f"{join_names(having)}, {repeat_name}{'s' * (len(repeats) > 1)}"
                f" {join_names(repeats)}: not counted, because {join_names(lacking)}"
                f" {'have' if len(lacking) > 1 else 'has'} no result there"
            )


def paired_repeats(values: Iterable[tuple[str, str]]) -> Pairing:
    """Of the (method, repeat) that have a value, in the order of first appearance."""
    values = list(values)
    methods = tuple(dict.fromkeys(method for method, _ in values))
    having = {repeat: set(by) for repeat, by in grouped((r, m) for m, r in values).items()}
    return Pairing(
        methods=methods,
        repeats=tuple(repeat for repeat, by in having.items() if by == set(methods)),
        uncounted={
            repeat: tuple(method for method in methods if method in by)
            for repeat, by in having.items()
            if by != set(methods)
        },
    )


@dataclass(frozen=True)
class PairedRows:
    """The rows of a table that count, and in words those that do not."""

    rows: tuple[RepeatRow, ...]
    left_out: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        """By scenario, how many repeats all methods have."""
        by_scenario = grouped((scenario, repeat) for scenario, _, repeat, _ in self.rows)
        return {scenario: len(set(repeats)) for scenario, repeats in by_scenario.items()}


def pair_rows(rows: Sequence[RepeatRow], repeat_name: str = "seed") -> PairedRows:
    """The rows of the repeats that, within each scenario, all its methods have."""
    kept: list[RepeatRow] = []
    left_out = []
    for scenario, here in grouped((row[0], row) for row in rows).items():
        pairing = paired_repeats((method, repeat) for _, method, repeat, _ in here)
        kept += [row for row in here if row[2] in pairing.repeats]
        left_out += [f"{scenario}: {words}" for words in pairing.uncounted_in_words(repeat_name)]
    if rows and not kept:
        raise UserError(f"no {repeat_name} that all methods have: {'; '.join(left_out[:3])}")
    return PairedRows(tuple(kept), tuple(left_out))


def paired_repeats_in_words(counts: Iterable[int], repeat_name: str = "seed") -> str:
    """How many repeats all methods have, by scenario: '5 paired seeds', '2 to 5 paired seeds'."""
    numbers = sorted(counts)
    if not numbers or not numbers[-1]:
        return f"no paired {repeat_name}"
    if numbers[-1] == 1:
        return f"one paired {repeat_name}"
    span = str(numbers[-1])
    if numbers[0] != numbers[-1]:
        span = f"{numbers[0]} to {numbers[-1]}"
    return f"{span} paired {repeat_name}s"

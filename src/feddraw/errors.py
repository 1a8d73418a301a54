"""The errors that users see, each said in one line, and checks of values that raise them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Number = TypeVar("Number", int, float)


class UserError(Exception):
    """Wrong name, value, file or shape.

    The command line prints it without a traceback and exits with 2.
    """


class RuleMistake(UserError):
    """A mistake in the code of a method's rule: it is the same for every client, so a round in this
    process ends with it and leaves nobody out for it.
    """


class NoSuchPath(UserError):
    """A path that leads nowhere. The command line adds where it was looked for."""

    def __init__(self, message: str, path: Path = Path()) -> None:
        super().__init__(message)
        self.path = path


class RunFailed(Exception):
    """A run that could not go on through no mistake of the user's; what it had is kept.

    Exit code 1.
    """


class OutOfMemory(RunFailed):
    """A device had no memory left; says what to lower."""


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist: suggests the nearest that do."""
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    near = get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    if not near:
        return UserError(f"no '{name}' among the {what}: choose from {', '.join(names)}")
    nearest = [
        candidate
        for spelling, candidate in lowered.items()
        if _likeness(spelling, name) == _likeness(near[0], name)
    ]
    one_of_them = "" if len(nearest) == 1 else "one of "
    hint = f"did you mean {one_of_them}{', '.join(nearest)}?"
    return UserError(f"no '{name}' among the {what}: {hint}")


def _likeness(spelling: str, name: str) -> float:
    return SequenceMatcher(None, spelling, name.lower()).ratio()


def first_line(error: BaseException) -> str:
    """What an error of someone else's code says, without the advice that may follow; its type if it
    says nothing.
    """
    return next(iter(str(error).splitlines()), type(error).__name__)


def in_one_line(error: BaseException) -> str:
    """All that an error of someone else's code says, or as much as fits into a message."""
    return " ".join(str(error).split())[:200]


def positive(name: str, value: Number) -> Number:
    """The value, if it is a positive finite number."""
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{name} must be a positive number, not {value}")
    return value


def not_negative(name: str, value: Number) -> Number:
    """The value, if it is a finite number of zero or more."""
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"{name} must be zero or more, not {value}")
    return value


def below_one(name: str, value: float) -> float:
    """The value, if it is from zero to below one."""
    if not 0 <= value < 1:
        raise UserError(f"{name} must be from 0 to below 1, not {value}")
    return value


def at_least(name: str, value: int, least: int) -> int:
    """The value, if it is not below the least."""
    if value < least:
        raise UserError(f"{name} must be at least {least}, not {value}")
    return value


def one_of(name: str, value: T, known: Sequence[T]) -> T:
    """The value, if it is among the known ones."""
    if value not in known:
        raise UserError(f"{name} must be one of {', '.join(map(str, known))}, not {value}")
    return value


def is_list_of_numbers(values: object, count: int) -> bool:
    """Whether this is a list of so many numbers."""
    return (
        isinstance(values, list | tuple)
        and len(values) == count
        and all(isinstance(v, int | float) for v in values)
    )

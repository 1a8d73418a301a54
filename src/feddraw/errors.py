"""The one exception that users see: a mistake they can mend, said in one line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Wrong name, value, file or shape. The command line prints it without a traceback and exits with 2."""


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist: suggests the nearest that does."""
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    near = get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    hint = f"did you mean {lowered[near[0]]}?" if near else f"there are {', '.join(names)}"
    return UserError(f"no '{name}' among the {what}: {hint}")

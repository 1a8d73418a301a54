"""A check and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "note", "broken"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: fine, worth knowing, or broken."""

    what: str
    state: State
    said: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


def attempted(what: str, look: Callable[[], Check]) -> Check:
    """A check whatever happens: what it raises is what is broken."""
    try:
        return look()
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        return Check(what, "broken", f"{type(error).__name__}: {reason}" if reason else type(error).__name__)


def within(error: float, tolerance: float) -> State:
    """Broken where an error is too large, or no number."""
    return "ok" if error < tolerance else "broken"

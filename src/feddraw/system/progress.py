"""How long work tells what it has done."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # what is done, how many are ready, of how many


def no_progress(what: str, ready: int, total: int) -> None:
    """For callers who want to be told nothing."""

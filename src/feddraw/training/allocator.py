"""Freed memory stays with the process, or goes back to the system at once where that is asked for.

A training step makes and frees tensors of megabytes. The C library's allocator hands them back to
the system each time, which clears every page before it gives it out again: a fifth of a step of the
compact network went there.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache

# glibc's mallopt(3): its numbers for the options, and the largest values that it takes
MALLOPT_LIMITS = {
    -3: 1
    # M_MMAP_THRESHOLD: blocks from 32 MB on are still mapped one by one, and go back when freed
    << 25,
    -1: (1 << 31) - 1,  # M_TRIM_THRESHOLD: up to 2 GB at the end of the heap are kept
}


@cache
def keep_freed_memory() -> bool:
    """Set the allocator's limits once per process, unless they are already set or it is not
    glibc's.
    """
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or tuned or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        mallopt(option, value) for option, value in MALLOPT_LIMITS.items()
    )


def return_freed_memory() -> None:
    """Give freed memory back to the system, which glibc would keep for the process."""
    if trim := _malloc_trim():
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], object] | None:
    """glibc's, where it is the library in use."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None

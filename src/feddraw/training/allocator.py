"""Freed memory stays with the process.

A training step makes and frees tensors of megabytes. The C library's allocator hands them back to the system each time,
which clears every page before it gives it out again: a fifth of a step of the compact network went there.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

# glibc's mallopt(3): its numbers for the options, and the largest values that it takes
MALLOPT_LIMITS = {
    -3: 1 << 25,  # M_MMAP_THRESHOLD: blocks from 32 MB on are still mapped one by one, and go back when freed
    -1: (1 << 31) - 1,  # M_TRIM_THRESHOLD: up to 2 GB at the end of the heap are kept
}


@cache
def keep_freed_memory() -> bool:
    """Set the allocator's limits once per process, unless they are already set or it is not glibc's."""
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or tuned or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(option, value) for option, value in MALLOPT_LIMITS.items())

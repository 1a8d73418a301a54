"""Threads of this process, for work that releases the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Work on several items in parallel: numpy and C release the interpreter's lock.

    No item may use threads itself.
    """
    return (
        [work(item) for item in items] if len(items) < 2 else list(_thread_pool().map(work, items))
    )


@cache
def _thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1))


os.register_at_fork(after_in_child=_thread_pool.cache_clear)  # threads do not survive a fork

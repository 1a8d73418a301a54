"""A cache of images and features for one measurement, in a folder that is deleted afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cache_in(folder: str) -> Iterator[None]:
    """Meanwhile prepared images and features are kept in this folder, also by other processes."""
    before = os.environ.get("FEDDRAW_CACHE")
    os.environ["FEDDRAW_CACHE"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["FEDDRAW_CACHE"]
        else:
            os.environ["FEDDRAW_CACHE"] = before

"""A run's folder: writing it as it happens, reading it back."""

from __future__ import annotations

from feddraw.old_names import names_moved_from

__getattr__ = names_moved_from(__name__)

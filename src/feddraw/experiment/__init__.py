"""One experiment: its settings, preparation, run and verification."""

from __future__ import annotations

from feddraw.old_names import names_moved_from

__getattr__ = names_moved_from(__name__)

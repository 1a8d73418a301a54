"""A run's folder: writing it as it happens, reading it back."""

from __future__ import annotations

from feddraw.moved import old_names

__getattr__ = old_names(__name__)

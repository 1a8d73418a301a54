"""Experiments: settings, preparation, runs, studies, verification."""

from __future__ import annotations

from feddraw.moved import old_names

__getattr__ = old_names(__name__)

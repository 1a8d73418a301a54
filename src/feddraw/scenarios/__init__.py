"""Ways to split a data set's training images between clients; one file per way."""

from __future__ import annotations

from feddraw.moved import old_names

__getattr__ = old_names(__name__)

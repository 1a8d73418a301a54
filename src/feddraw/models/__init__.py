"""One file per network; the file's name is the network's name."""

from feddraw.models.compact import compact

__all__ = ["compact"]

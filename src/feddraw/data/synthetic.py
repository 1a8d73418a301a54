"""Which data sets are made by code: no files, no patients."""

from __future__ import annotations

from feddraw import catalog


def is_synthetic(name: str) -> bool:
    """Whether the file of the data set says `SYNTHETIC = True`; its images are not made for that.

    Of such a set nothing is downloaded or prepared, its `train` and `mix` follow the scenario
    unless they are set, and its `validation` and `test` are numbers of images, where it has these
    settings.
    """
    return catalog.declared("datasets", name, "SYNTHETIC")

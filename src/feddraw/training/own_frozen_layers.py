"""Frozen layers that a site reads from a file of its own, and their digest, by which sites and
server tell whether they have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.data.feature_cache import tensors_digest
from feddraw.errors import UserError
from feddraw.text import one_line

Arrays = Mapping[str, NDArray[Any]]


def frozen_digest(arrays: Arrays) -> str:
    """A SHA-256 of the layers: each name with its type, shape and bytes."""
    return tensors_digest(arrays)


class OtherFrozenLayers(UserError):
    """A site's own file holds other frozen layers than all have agreed on."""


@dataclass(frozen=True, eq=False)
class OwnLayers:
    """The frozen layers of a file that a site has of its own, read when they are first needed."""

    file: str  # as the site's settings name it
    read: Callable[[], Arrays]

    @cached_property
    def arrays(self) -> Arrays:
        return self.read()

    @cached_property
    def digest(self) -> str:
        return frozen_digest(self.arrays)

    def check(self, agreed: str) -> None:
        """Refuse another digest than this file's: the layers that the server sends would not be
        those that the site was set up with.
        """
        if self.digest != agreed:
            raise OtherFrozenLayers(
                f"{one_line(Path(self.file).name, 60)}: its frozen tensors have SHA-256"
                f" {self.digest}, the server's {one_line(agreed, 64)}; get the agreed file, or set"
                " no backbone"
            )


def check_frozen_shapes(layers: Arrays, current: Arrays) -> None:
    """Refuse layers that are not those of this site's network."""
    if _shapes(layers) != _shapes(current):
        raise UserError(
            "the server's frozen layers are not those of this site's network: do the settings"
            " agree?"
        )


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: np.atleast_1d(array).shape for name, array in arrays.items()}

"""The numbers that a site sends in its model's `meta`: its images and its optimiser steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STEPS_KEY = "NUM_STEPS_CURRENT_ROUND"  # FLARE's own


@dataclass(frozen=True)
class AskedNumbers:
    """Under which keys they are looked for, and what to write where they are missing."""

    size_key: str  # the number of images

    def give_size(self, meta: Mapping[str, Any]) -> bool:
        """Whether a model's meta has the images, or the steps that stand for them."""
        return self.size_key in meta or STEPS_KEY in meta

    @property
    def meta_to_send(self) -> str:
        return f"{{'{self.size_key}': number of its images, '{STEPS_KEY}': optimiser steps}}"

    @property
    def how_to_send(self) -> str:
        return f"let the client's script send FLModel(params=…, meta={self.meta_to_send})"

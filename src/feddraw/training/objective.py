"""What a network's outputs mean, and what training makes small: given to training by the task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

Loss = Callable[[Tensor, Tensor], Tensor]  # logits, targets -> mean loss over the entries


class Objective(Protocol):
    """What training must know of a task. Logits and targets are (images, outputs)."""

    def loss(self, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """The mean loss over targets that are all known; of a part of their entries, as vectors,
        where a task may know one label of an image and not another.
        """
        ...

    def probabilities(self, logits: Tensor) -> Tensor:
        """Of each output, (images, outputs)."""
        ...

    def right(self, logits: NDArray[Any], targets: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each call that can be checked is right: a vector; unknown targets are NaN."""
        ...


@dataclass(frozen=True)
class Presence:
    """Each output says whether something is there, whatever the others say: a sigmoid each."""

    of_entries: Loss = binary_cross_entropy_with_logits

    def loss(self, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """Against targets moved towards one half by `smoothing`."""
        if smoothing:
            targets = targets * (1 - smoothing) + smoothing / 2
        return self.of_entries(logits, targets)

    def probabilities(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits)

    def right(self, logits: NDArray[Any], targets: NDArray[Any]) -> NDArray[np.bool_]:
        agree = (logits >= 0) == (targets >= 0.5)
        return np.asarray(agree[~np.isnan(targets)])


PRESENCE = Presence()

"""Networks for workers that come to grief: one takes more memory than it may have, one ends its
process.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

import torch
from torch import Tensor, nn


class Doomed(nn.Module):
    """A classifier that does something dreadful in its second round, unless a file says that it is
    healed.
    """

    classifier_name = "head"

    def __init__(self, classes: int, what: str) -> None:
        super().__init__()
        self.head, self.what, self.steps = nn.Linear(28 * 28, classes), what, 0

    def forward(self, images: Tensor) -> Tensor:
        self.steps += self.training
        if self.steps > 12 and not Path("healed").is_file():
            if self.what == "memory":
                resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))
                torch.empty(1 << 40)
            os._exit(9)
        logits: Tensor = self.head(images.flatten(1))
        return logits


def memory(classes: int) -> nn.Module:
    return Doomed(classes, "memory")


def death(classes: int) -> nn.Module:
    return Doomed(classes, "death")

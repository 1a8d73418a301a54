"""What every exported graph computes: grey levels of prepared images in, probabilities out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from feddraw.experiment.trained import TrainedModel


class FromPixels(nn.Module):
    """Normalisation, the network and the sigmoid as one module."""

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self.network = trained.module
        self.mean, self.std = 255 * trained.mean, 255 * trained.std

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.sigmoid(self.network((pixels - self.mean) / self.std))


def example(trained: TrainedModel) -> Tensor:
    return torch.zeros(2, 1, trained.recipe.size, trained.recipe.size)


def pixels(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 1, height, width), as the graph takes them."""
    return images[:, None].astype(np.float32)


def about(trained: TrainedModel) -> dict[str, Any]:
    """What a user of the file must know, as JSON."""
    limits = {name: _plain(value) for name, value in zip(trained.findings, trained.thresholds, strict=True)}
    return {
        "findings": list(trained.findings),
        "thresholds": limits,
        "input": f"(n, 1, {trained.recipe.size}, {trained.recipe.size}) float32, grey levels 0 to 255",
        "output": "(n, findings) probabilities; a finding is called if its probability is at least the threshold",
        "size": trained.recipe.size,
        "clahe": trained.recipe.clahe,
        "clahe_kernel": trained.recipe.kernel,
        "clahe_clip": trained.recipe.clip,
        "mean": trained.mean,
        "std": trained.std,
        "use": "research, not a medical device",
    }


def _plain(value: float) -> float | str | None:
    return None if np.isnan(value) else str(value) if np.isinf(value) else value

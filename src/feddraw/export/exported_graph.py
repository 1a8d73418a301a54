"""What every exported graph computes: grey levels of prepared images in, probabilities out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from feddraw.experiment.trained_model import TrainedModel
from feddraw.system.file_writing import json_values

Scorer = Callable[[NDArray[np.uint8]], NDArray[np.float32]]  # prepared images to probabilities


class FromPixels(nn.Module):
    """Normalisation, the network and the sigmoid as one module."""

    def __init__(self, network: nn.Module, mean: float, std: float) -> None:
        super().__init__()
        self.network, self.mean, self.std = network, mean, std

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.sigmoid(self.network((pixels - self.mean) / self.std))


def from_pixels(network: nn.Module, trained: TrainedModel) -> nn.Module:
    """A network, such as the trained one's own, with what comes before and after it."""
    return FromPixels(network, 255 * trained.mean, 255 * trained.std).eval()


def scorer_of_graph(graph: Callable[[Tensor], Tensor]) -> Scorer:
    """What such a graph gives for prepared images."""

    def scores(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        with torch.no_grad():
            return np.asarray(graph(torch.from_numpy(graph_input(images))).numpy())

    return scores


def example_input(trained: TrainedModel) -> Tensor:
    return torch.zeros(2, 1, trained.recipe.size, trained.recipe.size)


def graph_input(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 1, height, width), as the graph takes them."""
    return images[:, None].astype(np.float32)


def about_exported_model(trained: TrainedModel) -> dict[str, Any]:
    """What a user of the file must know, as JSON."""
    limits = json_values(dict(zip(trained.findings, trained.thresholds, strict=True)))
    return {
        "findings": list(trained.findings),
        "thresholds": limits,
        "input": (
            f"(n, 1, {trained.recipe.size}, {trained.recipe.size}) float32, grey levels 0 to 255"
        ),
        "output": (
            "(n, findings) probabilities; a finding is called if its probability is at least the"
            " threshold"
        ),
        "size": trained.recipe.size,
        "clahe": trained.recipe.clahe,
        "clahe_kernel": trained.recipe.kernel,
        "clahe_clip": trained.recipe.clip,
        "mean": trained.mean,
        "std": trained.std,
        "use": "research, not a medical device",
    }

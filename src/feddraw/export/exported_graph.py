"""What every exported graph computes: grey levels of prepared images in, probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from feddraw.experiment.trained_model import TrainedModel
from feddraw.results.recalibration import UNCHANGED, LogitLine
from feddraw.training.objective import Objective

Scorer = Callable[[NDArray[np.uint8]], NDArray[np.float32]]  # prepared images to probabilities


class FromPixels(nn.Module):
    """Normalisation, the network, the recalibration of its logits, and what makes probabilities of
    them as one module.
    """

    def __init__(
        self,
        network: nn.Module,
        mean: float,
        std: float,
        objective: Objective,
        lines: Sequence[LogitLine],
    ) -> None:
        super().__init__()
        self.network = network
        self.mean = mean
        self.std = std
        self.objective = objective
        self.recalibrated = any(line != UNCHANGED for line in lines)
        self.register_buffer("slopes", torch.tensor([line.slope for line in lines]))
        self.register_buffer("intercepts", torch.tensor([line.intercept for line in lines]))

    def forward(self, pixels: Tensor) -> Tensor:
        logits = self.network((pixels - self.mean) / self.std)
        if self.recalibrated:
            logits = self.slopes * logits + self.intercepts
        return self.objective.probabilities(logits)


def from_pixels(network: nn.Module, trained: TrainedModel) -> nn.Module:
    """A network, such as the trained one's own, with what comes before and after it."""
    mean, std = 255 * trained.mean, 255 * trained.std
    return FromPixels(network, mean, std, trained.task.objective, trained.lines).eval()


def scorer_of_graph(graph: Callable[[Tensor], Tensor]) -> Scorer:
    """A function that gives the probabilities of prepared images by such a graph."""

    def scores(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        with torch.no_grad():
            return np.asarray(graph(torch.from_numpy(graph_input(images))).numpy())

    return scores


def example_input(trained: TrainedModel) -> Tensor:
    """Two black images, to trace a graph with."""
    recipe = trained.recipe
    return torch.zeros(2, recipe.channels, recipe.size, recipe.size)


def graph_input(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Images as a graph takes them: (n, channels, height, width)."""
    channels_first = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(channels_first, np.float32)


def model_description(trained: TrainedModel) -> dict[str, Any]:
    """What a user of the file must know, as JSON."""
    recipe = trained.recipe
    recalibration = {
        finding: {"slope": line.slope, "intercept": line.intercept}
        for finding, line in zip(trained.findings, trained.lines, strict=True)
    }
    return {
        **trained.task.description(trained.findings, trained.recalibrated_thresholds),
        "recalibration": recalibration if trained.recalibration is not None else None,
        "input": (
            f"(n, {recipe.channels}, {recipe.size}, {recipe.size}) float32,"
            f" {'grey levels' if recipe.channels == 1 else 'red, green and blue'} 0 to 255"
        ),
        "size": recipe.size,
        "channels": recipe.channels,
        "fit": recipe.fit,
        "levels": list(recipe.levels),
        "clahe": recipe.clahe,
        "clahe_kernel": recipe.kernel,
        "clahe_clip": recipe.clip,
        "mean": trained.mean,
        "std": trained.std,
        "use": "research, not a medical device",
    }

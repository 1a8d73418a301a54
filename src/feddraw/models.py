"""Networks: functions that return an `nn.Module` for (batch, 1, height, width) images, with the name of its classifier.

`compact` is our own; `densenet121` is MONAI's, imported only when asked for because that import takes seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DenseLayer(nn.Module):
    """Normalise, rectify, convolve, and append what was found to what was there."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(self.relu(self.norm(x)))], dim=1)


class Transition(nn.Sequential):
    """Halve the channels and the resolution between two dense blocks."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(channels, channels // 2, 1, bias=False)
        self.pool = nn.AvgPool2d(2)


class Compact(nn.Module):
    """A DenseNet of about 50,000 parameters for images of 28 to 128 pixels; channels in eights keep the CPU's vectors full."""

    classifier_name = "classifier"

    def __init__(self, classes: int, growth: int, layers: tuple[int, ...] = (2, 3, 3)) -> None:
        super().__init__()
        channels = growth
        body: list[nn.Module] = [
            nn.Conv2d(1, channels, 5, stride=2, padding=2, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        ]
        for block, depth in enumerate(layers):
            if block:
                body.append(Transition(channels))
                channels //= 2
            for _ in range(depth):
                body.append(DenseLayer(channels, growth))
                channels += growth
        self.body = nn.Sequential(*body, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x).mean(dim=(2, 3))
        logits: Tensor = self.classifier(features)
        return logits


def compact(classes: int, growth: int = 16) -> nn.Module:
    """Our own small DenseNet, one grey channel, trained from scratch."""
    return Compact(classes, growth)

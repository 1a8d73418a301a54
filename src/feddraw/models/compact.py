"""Our own small DenseNet: about 50,000 parameters, for grey images or colour."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from feddraw.errors import UserError


class CompactLayer(nn.Module):
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


MOST_GROWTH = 512  # channels that a layer adds: 140 million parameters


class Compact(nn.Module):
    """A DenseNet of about 50,000 parameters for small images; channels in eights keep the CPU's
    vectors full.
    """

    classifier_name = "classifier"

    def __init__(
        self,
        classes: int,
        growth: int,
        layers: tuple[int, ...] = (2, 3, 3),
        in_channels: int = 1,
    ) -> None:
        super().__init__()
        if not 1 <= growth <= MOST_GROWTH:
            raise UserError(f"model.growth must be from 1 to {MOST_GROWTH}, not {growth}")
        channels = growth
        first = nn.Conv2d(in_channels, channels, 5, stride=2, padding=2, bias=False)
        body: list[nn.Module] = [first, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        for block, depth in enumerate(layers):
            if block:
                body.append(Transition(channels))
                channels //= 2
            for _ in range(depth):
                body.append(CompactLayer(channels, growth))
                channels += growth
        self.body = nn.Sequential(*body, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x).mean(dim=(2, 3))
        logits: Tensor = self.classifier(features)
        return logits


def compact(classes: int, growth: int = 16, in_channels: int = 1) -> nn.Module:
    """Our own small DenseNet, for grey images or colour, trained from scratch."""
    return Compact(classes, growth, in_channels=in_channels)

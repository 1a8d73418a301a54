"""Three convolutions: about 24,000 parameters in few, cheap steps, for studies of hundreds of small
federations.
"""

from __future__ import annotations

import itertools

from torch import Tensor, nn

from feddraw.errors import UserError

MOST_WIDTH = 512  # channels after the first convolution: 24 million parameters


class Plain(nn.Module):
    """Each convolution halves the resolution, the later ones double the channels; their means are
    classified.
    """

    classifier_name = "classifier"

    def __init__(self, classes: int, width: int, in_channels: int = 1) -> None:
        super().__init__()
        if not 1 <= width <= MOST_WIDTH:
            raise UserError(f"model.width must be from 1 to {MOST_WIDTH}, not {width}")
        channels = (in_channels, width, 2 * width, 4 * width)
        body: list[nn.Module] = []
        for step, (before, after) in enumerate(itertools.pairwise(channels)):
            kernel = 3 if step else 5
            conv = nn.Conv2d(before, after, kernel, stride=2, padding=kernel // 2, bias=False)
            body += [conv, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*body)
        self.classifier = nn.Linear(channels[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x).mean(dim=(2, 3))
        logits: Tensor = self.classifier(features)
        return logits


def plain(classes: int, width: int = 16, in_channels: int = 1) -> nn.Module:
    """Three convolutions, for grey images or colour, trained from scratch."""
    return Plain(classes, width, in_channels)

"""Random small rotations, shifts and zooms of a training batch, as in the paper, all images in one
call.

The paper applies them "stochastically" without a rate: here every image gets its own random draw.
What comes in from outside the film repeats its border, so the result is the same before and after
normalisation.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample


def augment(
    images: Tensor,
    generator: torch.Generator,
    rotation: float = 8.0,
    translation: float = 0.09,
    scale: tuple[float, float] = (0.95, 1.05),
) -> Tensor:
    """(b, channels, h, w) square images, each turned by up to `rotation` degrees, shifted by a
    share of its side, zoomed.
    """
    turn, zoom, right, down = torch.rand(4, len(images), generator=generator)
    angle = math.radians(rotation) * (2 * turn - 1)
    # The grid says where each pixel comes from.
    shrink = 1 / (scale[0] + (scale[1] - scale[0]) * zoom)
    cos = shrink * angle.cos()
    sin = shrink * angle.sin()
    # An image is 2 wide.
    shift_x, shift_y = (
        2 * translation * (2 * right - 1),
        2 * translation * (2 * down - 1),
    )
    theta = torch.stack([cos, -sin, shift_x, sin, cos, shift_y], dim=1).view(-1, 2, 3)
    grid = affine_grid(theta.to(images), list(images.shape), align_corners=False)
    return grid_sample(images, grid, padding_mode="border", align_corners=False)

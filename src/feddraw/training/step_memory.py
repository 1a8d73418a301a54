"""How much memory a training step takes, reckoned without taking it: the network's shapes go through torch's `meta`
device, where tensors have no content, and what the gradient needs to remember is added up."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from feddraw.errors import UserError
from feddraw.training.network import Build
from feddraw.training.settings import Training

GPU_CONTEXT = 600_000_000  # bytes that a process takes of a GPU before its first tensor
PARAMETER_COPIES = 8  # of the parameters: gradients, Adam's moments, what a rule keeps, networks that it compares with
MEMORY_SLACK = 1.25  # buffers of convolutions, gradients of activations, gaps


def step_memory(build: Build, pixels: int, training: Training) -> int | None:
    """Bytes that a worker takes of a device while it trains, without its images; None where shapes alone do not tell.

    A network whose way depends on values cannot be followed without them.
    """
    try:
        with torch.device("meta"):
            module = build()[0].to("meta").train()
            images = torch.empty(training.batch_size, 1, pixels, pixels)
            remembered = _kept_for_gradient(module, images.contiguous(memory_format=torch.channels_last))
    except (RuntimeError, NotImplementedError, TypeError, ValueError, UserError):  # nor can all classifiers be told
        return None
    state = 4 * sum(parameter.numel() for parameter in module.parameters())
    halved = remembered if training.amp == "off" else remembered // 2
    return GPU_CONTEXT + PARAMETER_COPIES * state + int(MEMORY_SLACK * halved)


def _kept_for_gradient(module: nn.Module, images: Tensor) -> int:
    """Bytes of all that a forward pass keeps for the gradient, each piece of memory once."""
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage  # itself, so that no other gets its number
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(images)
    own = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    return sum(storage.nbytes() for number, storage in kept.items() if number not in own)

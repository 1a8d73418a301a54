"""A device's memory: what a training step takes of it, what images may take, and what to say when
there is none left.

A step's memory is computed without taking it: the network's shapes go through torch's `meta`
device, where tensors have no content, and what the gradient needs is added up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from feddraw.errors import OutOfMemory, UserError
from feddraw.system.machine import machine_memory
from feddraw.training.devices import WorkerPlace
from feddraw.training.network import Build
from feddraw.training.settings import Training

# what a RuntimeError says that means a lack of memory
SHORTAGE_WORDS = (
    "can't allocate memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
GPU_CONTEXT = 600_000_000  # bytes that a process takes of a GPU before its first tensor
# of the parameters: gradients, Adam's moments, what a rule keeps, networks that it compares with
PARAMETER_COPIES = 8
MEMORY_SLACK = 1.25  # buffers of convolutions, gradients of activations, gaps
# Share of the free memory that images may take where nobody has planned what else needs it.
UNPLANNED_IMAGES = 0.5
# Bytes of images that this process may keep on a device.
_IMAGE_MEMORY: dict[torch.device, int] = {}


def step_memory(build: Build, pixels: int, training: Training) -> int | None:
    """Bytes that a worker takes of a device while it trains, without its images; None where shapes
    alone do not tell.

    A network whose way depends on values cannot be followed without them.
    """
    try:
        with torch.device("meta"):
            module = build()[0].to("meta").train()
            images = torch.empty(training.batch_size, 1, pixels, pixels)
            remembered = _kept_for_gradient(
                module, images.contiguous(memory_format=torch.channels_last)
            )
    except (
        RuntimeError,
        NotImplementedError,
        TypeError,
        ValueError,
        UserError,
    ):  # nor can all classifiers be told
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
    of_parameters = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    return sum(storage.nbytes() for number, storage in kept.items() if number not in of_parameters)


def allot_image_memory(place: WorkerPlace) -> None:
    """What a worker does at its start: remember how much of its device is its own."""
    if place.images >= 0:
        _IMAGE_MEMORY[torch.device(place.device)] = place.images


def image_memory(device: torch.device) -> int:
    """Bytes of images that this process may keep on a device: as allotted, or planned at the first
    question.

    Asked once: what an allocator holds back after a run would look as if it were taken.
    """
    if device not in _IMAGE_MEMORY:
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else machine_memory()[1]
        _IMAGE_MEMORY[device] = int(UNPLANNED_IMAGES * free)
    return _IMAGE_MEMORY[device]


def out_of_memory(error: BaseException) -> bool:
    """Whether numpy, torch or a GPU had no memory left."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in SHORTAGE_WORDS)


def memory_shortage(device: torch.device, batch_size: int) -> str:
    """What to say when a device had no memory left, and what to lower."""
    if device.type == "cpu":
        return "it ran out of memory: try fewer workers or smaller batches"
    total = f" ({torch.cuda.mem_get_info(device)[1] / 1e9:.0f} GB)" if device.type == "cuda" else ""
    lower = (
        f"lower workers, training.batch_size (now {batch_size}) or data.size, or set"
        " training.amp=bf16"
    )
    return f"{device}{total} ran out of memory: {lower}"


def empty_device_cache(device: torch.device) -> None:
    """Give back what the allocator holds of memory that nobody uses."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


class HasTraining(Protocol):
    training: Training  # read when memory runs out: a trainer's batch size may have changed by then


@contextmanager
def memory_shortage_told(trainer: HasTraining) -> Iterator[None]:
    """Memory that is not there, here or on the device that this process trains on, as one line."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        training = trainer.training
        raise OutOfMemory(
            memory_shortage(torch.device(training.device), training.batch_size)
        ) from error

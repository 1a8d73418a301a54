"""How images come to a device: all at once where it has room for them, else batch by batch, one
ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddraw.training.device_memory import image_memory

Rows = NDArray[np.intp]
Arrays = Sequence[NDArray[Any]]


class ImageFeed(Protocol):
    def __call__(self, chosen: Iterable[Rows]) -> Iterator[list[Tensor]]:
        """For each batch of rows, those rows of every array, on the device."""


def feed_to(device: torch.device, arrays: Arrays) -> ImageFeed:
    """Decided by what the process may keep on the device, not by what happens to be free at the
    moment.
    """
    fits = sum(array.nbytes for array in arrays) <= image_memory(device)
    return KeptOnDevice(device, arrays) if fits else CopiedToDevice(device, arrays)


class KeptOnDevice:
    """Everything lies on the device; only the numbers of rows are sent."""

    def __init__(self, device: torch.device, arrays: Arrays) -> None:
        self._device = device
        self._parts = [torch.tensor(np.asarray(array), device=device) for array in arrays]

    def __call__(self, chosen: Iterable[Rows]) -> Iterator[list[Tensor]]:
        for rows in chosen:
            where = torch.from_numpy(np.ascontiguousarray(rows)).to(self._device)
            yield [part[where] for part in self._parts]


class CopiedToDevice:
    """Two buffers in memory that a GPU reads by itself: one is filled while the other is on its
    way.

    The copies go beside the computation, in a stream of their own. A batch is sent before the one
    ahead of it is given out, so it travels while that one is computed on.
    """

    def __init__(self, device: torch.device, arrays: Arrays) -> None:
        self._device = device
        self._arrays = arrays
        self._on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None  # type: ignore[no-untyped-call]
        self._buffers: list[list[Tensor]] = [[], []]
        self._sent: list[torch.cuda.Event | None] = [None, None]

    def __call__(self, chosen: Iterable[Rows]) -> Iterator[list[Tensor]]:
        sent = (self._send(rows, number % 2) for number, rows in enumerate(chosen))
        batch = next(sent, None)
        while batch is not None:
            following = next(sent, None)
            parts, event = batch
            yield self._arrived(parts, event)
            batch = following

    def _send(self, rows: Rows, turn: int) -> tuple[list[Tensor], torch.cuda.Event | None]:
        if (before := self._sent[turn]) is not None:
            before.synchronize()  # what was in the buffer has left it
        parts = self._filled(rows, turn)
        if self._stream is None:
            return [
                part.clone() if self._device.type == "cpu" else part.to(self._device)
                for part in parts
            ], None
        with torch.cuda.stream(self._stream):
            moved = [part.to(self._device, non_blocking=True) for part in parts]
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        self._sent[turn] = event
        return moved, event

    def _filled(self, rows: Rows, turn: int) -> list[Tensor]:
        if not self._buffers[turn] or len(self._buffers[turn][0]) < len(rows):
            self._buffers[turn] = [self._buffer(len(rows), array) for array in self._arrays]
        parts = [buffer[: len(rows)] for buffer in self._buffers[turn]]
        for part, array in zip(parts, self._arrays, strict=True):
            np.take(array, rows, axis=0, out=part.numpy(), mode="clip")  # straight into the buffer
        return parts

    def _buffer(self, length: int, array: NDArray[Any]) -> Tensor:
        kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
        return torch.empty((length, *array.shape[1:]), dtype=kind, pin_memory=self._on_gpu)

    def _arrived(self, parts: list[Tensor], event: torch.cuda.Event | None) -> list[Tensor]:
        if event is not None:
            now = torch.cuda.current_stream(self._device)
            now.wait_event(event)
            for part in parts:
                # Its memory is not given to the next copy while it is in use.
                part.record_stream(now)
        return parts

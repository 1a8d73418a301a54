"""Numpy arrays in memory that several processes share."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from mmap import mmap
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.errors import RunFailed

_ATTACHED: list[SharedMemory] = []  # an array does not keep its block alive


@dataclass(frozen=True)
class SharedHandle:
    """What another process needs to find an array: a block of shared memory, or a file that it may
    map by itself.
    """

    shape: tuple[int, ...]
    dtype: str
    block: str = ""
    file: str = ""
    offset: int = 0


class SharedArrays:
    """Arrays made here for others to attach to; all are freed by `close`."""

    def __init__(self) -> None:
        self._blocks: list[SharedMemory] = []

    def empty(
        self, shape: tuple[int, ...], dtype: Any, *, sparse: bool = False
    ) -> tuple[NDArray[Any], SharedHandle]:
        """Memory that is taken now or, where only some of it may be used, as it is written to
        (`sparse`).
        """
        length = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
        try:
            block = SharedMemory(create=True, size=length)
        except OSError as error:
            raise RunFailed(
                f"no shared memory for {length / 1e6:,.0f} MB ({error}): try engine = serial"
            ) from error
        self._blocks.append(block)
        if not sparse:
            self._take(block, 0, length)
        array: NDArray[Any] = np.ndarray(shape, dtype, buffer=block.buf)
        return array, SharedHandle(shape, np.dtype(dtype).str, block=block.name)

    def reserve(self, handle: SharedHandle, row: int) -> None:
        """Take the memory of one row of a sparse array before it is written to."""
        length = math.prod(handle.shape[1:]) * np.dtype(handle.dtype).itemsize
        block = next(block for block in self._blocks if block.name == handle.block)
        self._take(block, row * length, length)

    @staticmethod
    def _take(block: SharedMemory, start: int, length: int) -> None:
        """From the system, which else would kill the process at the first write if there is no
        more.
        """
        try:
            if length and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(block._fd, start, length)  # type: ignore[attr-defined]
        except OSError as error:
            raise RunFailed(
                f"no shared memory for {length / 1e6:,.0f} MB ({error}): try engine = serial"
            ) from error

    def publish(self, array: NDArray[Any]) -> SharedHandle:
        """A copy for others to read; a whole file that is mapped to memory needs none."""
        if isinstance(array, np.memmap) and _is_whole_file(array):
            return SharedHandle(
                array.shape, array.dtype.str, file=str(array.filename), offset=array.offset
            )
        copy, handle = self.empty(array.shape, array.dtype)
        copy[...] = array
        return handle

    def close(self) -> None:
        for block in self._blocks:
            _release_block(block)
            block.unlink()
        self._blocks.clear()


def _is_whole_file(array: np.memmap[Any, Any]) -> bool:
    """Whether other processes can map the same numbers; a part of a mapped file has the offset of
    the whole.
    """
    base: object = array.base
    mapped = isinstance(base, mmap) and bool(array.filename)
    return mapped and array.mode != "c" and array.flags.c_contiguous


def attach_shared(handle: SharedHandle) -> NDArray[Any]:
    """An array that another process made; it stays until this process ends."""
    if handle.file:
        return np.memmap(handle.file, handle.dtype, "r", handle.offset, handle.shape)
    block = SharedMemory(handle.block)
    _ATTACHED.append(block)
    return np.ndarray(handle.shape, handle.dtype, buffer=block.buf)


def _release_block(block: SharedMemory) -> None:
    """Close unless an array still looks into it; the memory then goes with the last of them."""
    try:
        block.close()
    except BufferError:
        # keep the mapping, but do not let its destructor complain when the process ends
        block._mmap = None  # type: ignore[attr-defined]
        block._buf = None  # type: ignore[attr-defined]

"""Between Flower's records and our flat models: every tensor keeps its name, shape and type, and no
bit is lost.

A tensor travels in numpy's own file format. bfloat16, which numpy does not know, travels as the 16
bits of each number under the type name `bfloat16`. Nothing is ever unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from feddraw.core import GRADIENT_MEANS, Entry, Extra, Layout, Model, Vector
from feddraw.core.model import blank_model

if TYPE_CHECKING:
    from torch import Tensor

NUMPY_ARRAY = "numpy.ndarray"
NPY_PREFIX = b"\x93NUMPY\x01\x00"  # of a file in numpy's format, version 1


class Refused(Exception):
    """Why a reply cannot be a model like the one that was sent."""


def pack_array(values: NDArray[Any], dtype: str = "") -> Array:
    """An array as Flower carries it, rounded to another type where one is named."""
    name = dtype or str(values.dtype)
    stored = _to_bfloat16(values) if name == "bfloat16" else values.astype(name, copy=False)
    stored = np.ascontiguousarray(stored).reshape(values.shape)
    header = npy_header(stored.dtype.str, stored.shape)
    data = b"".join([header, stored.data]) if stored.size else header
    return Array(name, tuple(values.shape), NUMPY_ARRAY, data)


def unpack_array(array: Array) -> NDArray[Any]:
    """What an `Array` holds, without a copy where that can be; bfloat16 as float32."""
    if array.stype != NUMPY_ARRAY:
        raise Refused(f"a tensor of the kind '{array.stype:.40}', not {NUMPY_ARRAY}")
    try:
        values = _view_npy(array.data)
    except Exception as error:
        # numpy evaluates the header's text, and raises whatever that text provokes
        raise Refused(f"a tensor that cannot be read ({str(error)[:80]})") from None
    if array.dtype == "bfloat16" and values.dtype.itemsize == 2:
        bits = np.ascontiguousarray(values).view(np.uint16).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    return values


def _view_npy(data: bytes) -> NDArray[Any]:
    """Never `np.load`: it allocates what a header claims, and opens archives."""
    if data[:8] != NPY_PREFIX:
        raise ValueError("not in numpy's format, version 1")
    start = 10 + int.from_bytes(data[8:10], "little")
    shape, in_columns, dtype = _read_npy_header(data[8:start])
    values = np.frombuffer(data, dtype, math.prod(shape), start)  # objects are refused here
    return values.reshape(shape, order="F" if in_columns else "C")


@lru_cache(maxsize=4096)
def _read_npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the columns come first, and type; the same few headers come from every client
    in every round.
    """
    shape, in_columns, dtype = np.lib.format.read_array_header_1_0(BytesIO(header))
    return shape, in_columns, dtype


@lru_cache(maxsize=4096)
def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """What numpy's format has before the numbers of an array; `dtype` as in `numpy.dtype.str`."""
    file = BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def _to_bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The upper half of each float32, rounded to the nearest, to even where two are equally
    near.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded).reshape(values.shape)


def model_to_arrays(model: Model) -> ArrayRecord:
    """A model as a state dict on the wire."""
    vectors = {"param": model.params, "buffer": model.buffers, "counter": model.counters}
    record = ArrayRecord()
    for entry in model.layout.entries:
        tensor = vectors[entry.kind][entry.span].reshape(entry.shape)
        record[entry.name] = pack_array(tensor, entry.dtype)
    return record


def arrays_to_model(arrays: ArrayRecord, layout: Layout) -> Model:
    """The way back; `Refused` if the tensors are those of another network."""
    model = blank_model(layout)
    ArrayRecordReader(layout).read(arrays, model)
    return model


class ArrayRecordReader:
    """Copies state dicts of one layout from messages into models; the expected headers are computed
    once.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._expected = [(entry, *_expected_header(entry)) for entry in layout.entries]

    def read(self, arrays: ArrayRecord, model: Model) -> None:
        """`Refused` if the tensors are those of another network."""
        vectors = {"param": model.params, "buffer": model.buffers, "counter": model.counters}
        _check_names(arrays, self._layout)
        tensors = dict(arrays.items())  # Flower's record checks types at every access
        # what does not fit becomes infinite, and the gate finds it
        with np.errstate(over="ignore"):
            for entry, header, dtype in self._expected:
                data = tensors[entry.name].data
                if (
                    dtype is not None
                    and data.startswith(header)
                    and len(data) == len(header) + entry.size * dtype.itemsize
                ):
                    values = np.frombuffer(data, dtype, entry.size, len(header))
                else:
                    values = _values_like(entry, tensors[entry.name])
                vectors[entry.kind][entry.span] = values


def _expected_header(entry: Entry) -> tuple[bytes, np.dtype[Any] | None]:
    """The header that a tensor has where the client's numpy writes as ours does, and its type; no
    type where every header must be looked at.
    """
    if entry.dtype == "bfloat16":
        return b"", None
    dtype = np.dtype(entry.dtype)
    return npy_header(dtype.str, entry.shape), dtype


def _values_like(entry: Entry, array: Array) -> NDArray[Any]:
    """A tensor with another header, if its shape and type fit the one that was sent."""
    values = unpack_array(array)
    if values.shape != entry.shape:
        raise Refused(f"{entry.name} of shape {values.shape} where {entry.shape} was sent")
    if values.dtype.kind not in ("iub" if entry.kind == "counter" else "f"):
        raise Refused(f"{entry.name} of type {array.dtype:.20} where {entry.dtype} was sent")
    return values.ravel()


def _check_names(arrays: ArrayRecord, layout: Layout) -> None:
    sent = {entry.name for entry in layout.entries}
    lost = sorted(sent - set(arrays))
    if lost:
        raise Refused(f"{len(lost)} tensor(s) are not there, such as {lost[0]}")
    new = sorted(set(arrays) - sent)
    if new:
        raise Refused(f"{len(new)} tensor(s) that were not sent, such as {new[0]:.60}")


def vectors_to_arrays(vectors: Mapping[str, Vector]) -> ArrayRecord:
    """Vectors by name, as they travel."""
    return ArrayRecord({name: pack_array(vector) for name, vector in vectors.items()})


def arrays_to_vectors(arrays: ArrayRecord) -> dict[str, Vector]:
    """Copies, because the data of a message is read-only."""
    return {name: np.array(unpack_array(array)) for name, array in arrays.items()}


def arrays_to_extras(
    arrays: ArrayRecord | None, wanted: Mapping[str, Extra], layout: Layout
) -> dict[str, Vector]:
    """What a client sends beside the model, each a float32 vector of its length; zeros for a mean
    left out. `wanted` is what the method asks for, by name.
    """
    vectors: dict[str, Vector] = {}
    for name, extra in wanted.items():
        length = layout.extent(extra.extent)
        if arrays is not None and name in arrays:
            vectors[name] = _floats(name, arrays[name], length)
        elif arrays is not None and name in GRADIENT_MEANS:
            vectors[name] = np.zeros(length, np.float32)
        else:
            meaning = f" ({extra.meaning})" if extra.meaning else ""
            raise Refused(
                f"no {name}{meaning} beside the model: train with feddraw.flower.client, or send it"
                f" in an ArrayRecord 'extra' as '{name}', float32 of shape ({length},)"
            )
    return vectors


def _floats(name: str, array: Array, length: int) -> Vector:
    values = unpack_array(array)
    if values.shape != (length,) or values.dtype.kind != "f":
        raise Refused(
            f"{name} of shape {values.shape} and type {values.dtype}, not {length} floats"
        )
    return values.astype(np.float32)


def record(state: Mapping[str, Tensor]) -> ArrayRecord:
    """`ArrayRecord(state_dict)` for networks of any precision: Flower's own cannot hold
    bfloat16.
    """
    import torch

    arrays = ArrayRecord()
    for name, tensor in state.items():
        values = tensor.detach().cpu()
        if tensor.dtype == torch.bfloat16:
            arrays[name] = pack_array(values.float().numpy(), "bfloat16")
        else:
            arrays[name] = pack_array(values.numpy())
    return arrays


def state_dict(arrays: ArrayRecord) -> dict[str, Tensor]:
    """The way back, each tensor in the type that it was sent with."""
    import torch

    state: dict[str, Tensor] = {}
    for name, array in arrays.items():
        values = torch.from_numpy(np.array(unpack_array(array)))
        state[name] = values.to(getattr(torch, array.dtype))
    return state

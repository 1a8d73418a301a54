"""A model on the wire as a few long arrays instead of one array per tensor.

Flower moves every array of a message as an object of its own, through four processes, so that a
network of hundreds of small tensors takes longer than its bytes need. In the flat form a record
holds one vector for each type of number (float32: parameters and batch-norm statistics, int64:
counters), in which the tensors lie one after the other in the record's order, and the layout as
text: name, type and shape of every tensor.

Nothing is computed: bytes are joined and cut, so the tensors that come out are those that went in,
to the last bit of their headers. The layout comes with every record, because a node that was
restarted remembers none; its hash is what the two ends agree on (`flat_exchange`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from feddraw.flower.array_records import NUMPY_ARRAY, Refused, npy_header, pack_array
from feddraw.text import one_line

LAYOUT = "feddraw layout"  # the array that holds the text, and by which a flat record is known
# Types of tensors that have a flat form, and how each is stored.
STORED_TYPES = {
    name: np.dtype(name)
    for name in (
        *("float16", "float32", "float64", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
} | {"bfloat16": np.dtype(np.uint16)}

LONGEST_OTHER_LAYOUT = 16  # times the layout that was sent: a longer one is not looked into
SHORT_LAYOUT = 1 << 16  # bytes that are never too many


@dataclass(frozen=True)
class TensorForm:
    """What a layout says about one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @cached_property
    def header(self) -> bytes:
        """What stands before the tensor's numbers in an ordinary record."""
        return npy_header(STORED_TYPES[self.dtype].str, self.shape)

    @cached_property
    def bytes_of_numbers(self) -> int:
        return math.prod(self.shape) * STORED_TYPES[self.dtype].itemsize

    def describes(self, array: Array) -> bool:
        """Whether an array is this header and these numbers, and nothing else."""
        return (
            array.stype == NUMPY_ARRAY
            and len(array.data) == len(self.header) + self.bytes_of_numbers
            and array.data.startswith(self.header)
        )

    def __str__(self) -> str:
        return f"{one_line(self.name, 60)} of shape {self.shape} and type {self.dtype:.20}"


@dataclass(frozen=True)
class FlatLayout:
    """The tensors of a record in their order."""

    tensors: tuple[TensorForm, ...]

    @staticmethod
    def of_record(record: ArrayRecord) -> FlatLayout | None:
        """The layout of an ordinary record; None where a tensor cannot be restored to the bit from
        its name, type, shape and numbers.
        """
        tensors = []
        for name, array in record.items():
            if array.dtype not in STORED_TYPES:
                return None
            tensor = TensorForm(name, array.dtype, tuple(array.shape))
            if not tensor.describes(array):
                return None
            tensors.append(tensor)
        return FlatLayout(tuple(tensors))

    @staticmethod
    def of_text(text: bytes) -> FlatLayout:
        """The way back from `text`; `Refused` if it is none."""
        try:
            tensors = tuple(_tensor_of_json(item) for item in json.loads(text))
        except (ValueError, TypeError, RecursionError):
            raise Refused("the layout of its flat model cannot be read") from None
        if len({tensor.name for tensor in tensors}) != len(tensors):
            raise Refused("a tensor's name comes twice in the layout of its flat model")
        return FlatLayout(tensors)

    @cached_property
    def text(self) -> bytes:
        """Name, type and shape of each tensor, as JSON."""
        rows = [[tensor.name, tensor.dtype, tensor.shape] for tensor in self.tensors]
        return json.dumps(rows, separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> str:
        """The hash by which two ends know that they mean the same layout."""
        return hashlib.sha256(self.text).hexdigest()

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types of the tensors, each once: a vector each in the flat form."""
        return tuple(dict.fromkeys(tensor.dtype for tensor in self.tensors))

    def of_type(self, dtype: str) -> Iterator[TensorForm]:
        return (tensor for tensor in self.tensors if tensor.dtype == dtype)

    @property
    def is_worth_it(self) -> bool:
        """Whether the flat form has fewer arrays than the ordinary one."""
        return len(self.tensors) > len(self.types) + 1

    def first_difference(self, other: FlatLayout) -> str:
        """The first tensor of another layout that is not as in this one, in words."""
        for ours, theirs in zip(self.tensors, other.tensors, strict=False):
            if ours != theirs:
                return f"{theirs} where {ours} was sent"
        if len(other.tensors) > len(self.tensors):
            return f"{other.tensors[len(self.tensors)]}, which was not sent"
        if len(other.tensors) < len(self.tensors):
            return f"no {self.tensors[len(other.tensors)]}, which was sent"
        return "the same tensors in another spelling"


def _tensor_of_json(item: Any) -> TensorForm:
    name, dtype, shape = item
    if not isinstance(name, str) or not isinstance(shape, list):
        raise TypeError("no tensor")
    if dtype not in STORED_TYPES:
        raise ValueError("no type of numbers")
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError("no shape")
    return TensorForm(name, dtype, tuple(shape))


def is_flat(record: ArrayRecord) -> bool:
    return LAYOUT in record


def flat_record(record: ArrayRecord, layout: FlatLayout) -> ArrayRecord:
    """An ordinary record in the flat form; `layout` is its own."""
    flat = ArrayRecord({LAYOUT: pack_array(np.frombuffer(layout.text, np.uint8))})
    arrays = dict(record.items())  # Flower's record checks types at every access
    for dtype in layout.types:
        pieces = [
            memoryview(arrays[tensor.name].data)[len(tensor.header) :]
            for tensor in layout.of_type(dtype)
        ]
        length = sum(map(len, pieces)) // STORED_TYPES[dtype].itemsize
        header = npy_header(STORED_TYPES[dtype].str, (length,))
        flat[dtype] = Array(dtype, (length,), NUMPY_ARRAY, b"".join([header, *pieces]))
    return flat


def ordinary_record(flat: ArrayRecord, layout: FlatLayout) -> ArrayRecord:
    """The tensors of a flat record, whose layout this is; `Refused` if its vectors do not fit."""
    _check_vectors(flat, layout)
    numbers = {dtype: _numbers_in(flat[dtype], dtype, layout) for dtype in layout.types}
    ends = dict.fromkeys(layout.types, 0)
    tensors = {}
    for tensor in layout.tensors:
        start = ends[tensor.dtype]
        ends[tensor.dtype] = start + tensor.bytes_of_numbers
        piece = numbers[tensor.dtype][start : ends[tensor.dtype]]
        data = b"".join([tensor.header, piece])
        tensors[tensor.name] = Array(tensor.dtype, tensor.shape, NUMPY_ARRAY, data)
    return ArrayRecord(tensors)


def _check_vectors(flat: ArrayRecord, layout: FlatLayout) -> None:
    """That there is a vector for each type of numbers, and nothing beside them."""
    expected = {LAYOUT, *layout.types}
    lost = sorted(expected - set(flat))
    if lost:
        raise Refused(f"its flat model has no vector of {lost[0]}")
    new = sorted(set(flat) - expected)
    if new:
        raise Refused(f"its flat model has an array '{one_line(new[0], 60)}' of no tensor")


def _numbers_in(array: Array, dtype: str, layout: FlatLayout) -> memoryview:
    """The bytes of a vector that is as long as all tensors of its type together."""
    size = sum(tensor.bytes_of_numbers for tensor in layout.of_type(dtype))
    length = size // STORED_TYPES[dtype].itemsize
    vector = TensorForm(dtype, dtype, (length,))
    if array.dtype != dtype or not vector.describes(array):
        raise Refused(
            f"its flat model has a vector of type {array.dtype:.20}, shape"
            f" {one_line(tuple(array.shape), 40)} and {len(array.data):,} bytes where {length:,}"
            f" numbers of type {dtype} were sent"
        )
    return memoryview(array.data)[len(vector.header) :]


def layout_in_record(flat: ArrayRecord, digest: str) -> FlatLayout:
    """The layout that a flat record brings; `Refused` if its hash is not the one announced."""
    text = _layout_text(flat)
    if hashlib.sha256(text).hexdigest() != digest:
        raise Refused("the layout of its flat model is not the one whose hash was announced")
    return FlatLayout.of_text(text)


def check_layout(flat: ArrayRecord, sent: FlatLayout) -> None:
    """`Refused`, with the first tensor that differs, if a flat record has another layout than the
    one that was sent. One that is far too long is not looked into.
    """
    text = _layout_text(flat)
    if len(text) > max(SHORT_LAYOUT, LONGEST_OTHER_LAYOUT * len(sent.text)):
        raise Refused(
            f"its flat model is of another network: its layout has {len(text):,} bytes where"
            f" {len(sent.text):,} were sent"
        )
    if hashlib.sha256(text).hexdigest() == sent.digest:
        return
    difference = sent.first_difference(FlatLayout.of_text(text))
    raise Refused(f"its flat model is of another network: {difference}")


def _layout_text(flat: ArrayRecord) -> bytes:
    array = flat[LAYOUT]
    shape = tuple(array.shape)
    vector = len(shape) == 1 and type(shape[0]) is int
    if not vector or not TensorForm(LAYOUT, "uint8", shape).describes(array):
        raise Refused("the layout of its flat model is no text")
    return array.data[len(array.data) - shape[0] :]

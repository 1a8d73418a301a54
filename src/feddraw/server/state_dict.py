"""A layout from a plain state dict: which tensors are parameters, which are statistics, which layer
is the classifier.

For servers that get tensors with names and types, but no network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feddraw.core import Kind, Layout, Model
from feddraw.core.classifier_layer import choose_classifier, likely_classifier
from feddraw.core.model import blank_model
from feddraw.errors import UserError

Arrays = dict[str, NDArray[Any]]

FLOAT_TYPES = ("float16", "bfloat16", "float32", "float64")
STATISTICS = (".running_mean", ".running_var")  # of batch normalisation: averaged, never stepped


class Tensorlike(Protocol):
    """A type and a shape."""

    @property
    def dtype(self) -> Any: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


def layout_of_arrays(
    arrays: Mapping[str, Tensorlike],
    classifier: str | Sequence[str] = "",
    *,
    outputs: int = 0,
    ask: bool = True,
) -> Layout:
    """What a state dict's tensors are, by their names and types; the classifier as named, or as it
    can be found.

    `outputs` is the number of findings where it is known. A classifier that cannot be told is asked
    for if `ask`.
    """
    tensors = [
        (name, _tensor_kind(name, array), tuple(array.shape), str(array.dtype))
        for name, array in arrays.items()
    ]
    layout = Layout.of(tensors, "")
    params = [entry for entry in layout.entries if entry.kind == "param"]
    if not params:
        raise UserError("the initial arrays hold no parameters: give a state dict")
    last_layers = (
        choose_classifier(params, classifier, outputs)
        if classifier or ask
        else likely_classifier(params, outputs)
    )
    return replace(layout, classifier=last_layers)


def _tensor_kind(name: str, array: Tensorlike) -> Kind:
    if str(array.dtype) in FLOAT_TYPES:
        return "buffer" if f".{name}".endswith(STATISTICS) else "param"
    if np.dtype(str(array.dtype)).kind in "iub":
        return "counter"
    raise UserError(f"tensor {name} is of type {array.dtype}, which cannot be averaged")


def plain_arrays(params: Any) -> Arrays:
    """Arrays, whatever the exchange format: numpy's, torch's tensors, or references to tensors on
    disk. `TypeError` if it is no state dict.
    """
    if not isinstance(params, Mapping):
        kind = type(params).__name__
        hint = ": give its state_dict()" if hasattr(params, "state_dict") else ""
        raise TypeError(f"of type {kind}, no state dict of arrays by name{hint}")
    loaded = {
        name: value.materialize() if hasattr(value, "materialize") else value
        for name, value in params.items()
    }
    return {name: as_numpy(value) for name, value in loaded.items()}


def as_numpy(value: Any) -> NDArray[Any]:
    """A tensor or anything like an array as numpy's; bfloat16, which numpy lacks, as float32."""
    if not hasattr(value, "detach"):
        return np.asarray(value)
    tensor = value.detach().cpu()
    return np.asarray(tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor)


def state_dict_like(model: Model, example: Mapping[str, Any]) -> dict[str, Any]:
    """A model as a state dict of the example's kind: numpy arrays, or torch tensors of its types on
    its device.
    """
    arrays = model.arrays()
    return {
        name: value.new_tensor(arrays[name]) if hasattr(value, "new_tensor") else arrays[name]
        for name, value in example.items()
    }


def flatten_state_dict(params: Arrays, layout: Layout) -> Model:
    """Tensors by name as flat vectors; `ValueError` if they are those of another network."""
    names = {entry.name for entry in layout.entries}
    if params.keys() != names:
        raise ValueError(_names_refusal(params.keys(), names))
    model = blank_model(layout)
    vectors = {"param": model.params, "buffer": model.buffers, "counter": model.counters}
    for entry in layout.entries:
        values = params[entry.name]
        if values.shape != entry.shape:
            raise ValueError(f"{entry.name} of shape {values.shape} where {entry.shape} was sent")
        if values.dtype.kind not in ("iub" if entry.kind == "counter" else "f"):
            raise ValueError(f"{entry.name} of type {values.dtype} where {entry.dtype} was sent")
        vectors[entry.kind][entry.span] = values.ravel()
    return model


def _names_refusal(updated: Set[str], sent: Set[str]) -> str:
    """How the names of a client's tensors differ from those that were sent."""
    if not updated:
        return f"it has no tensors where {len(sent)} were sent"
    differences = []
    if missing := sorted(sent - updated):
        differences.append(f"{len(missing)} of {len(sent)} are missing, such as {missing[0]}")
    if added := sorted(map(str, updated - sent)):
        differences.append(f"{len(added)} were not sent, such as {added[0]:.60}")
    return f"its tensors have other names: {', '.join(differences)}"

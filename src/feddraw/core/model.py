"""A network's state as flat vectors: which tensor lies where (`Layout`), and the vectors (`Model`).

numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from feddraw.errors import UserError, unknown

Vector = NDArray[Any]  # floating, (d,)
# The classifier: one layer, or several in the order of their findings.
Heads = str | tuple[str, ...]

# A vector as long as the parameters, as a whole model (parameters, then floating buffers), a single
# number, one number per finding, the counts of `GROUP_COUNTS`, as long as the classifier's
# parameters, or the two numbers of `SPREAD`.
Extent = Literal["params", "model", "number", "findings", "groups", "classifier", "spread"]
Kind = Literal["param", "buffer", "counter"]
LayerPart = Literal["both", "weight", "bias"]

SPREAD = ("images measured", "variance")  # of one image's gradient, summed over the parameters
# Per finding: positive images of each of two groups, then those of them that are called positive;
# then all labels and those that are called right.
GROUP_COUNTS = ("positive 0", "positive 1", "found 0", "found 1")


SMALLEST_VARIANCE = 1e-5  # that batch norm adds to a variance before it divides by its root


@dataclass(frozen=True)
class Entry:
    """One named tensor of a network and where it lies in the flat vector of its kind."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    start: int
    dtype: str = "float32"

    @cached_property
    def size(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def span(self) -> slice:
        return slice(self.start, self.start + self.size)


@dataclass(frozen=True)
class Layout:
    """What the flat vectors of a model mean: the order of its tensors and which layer is the
    classifier.

    Frozen tensors are in no vector: they are the same in every model of a run, and part of its
    state dict only.
    """

    entries: tuple[Entry, ...]
    classifier: Heads
    frozen: Mapping[str, NDArray[Any]] = field(default_factory=dict, compare=False)

    @staticmethod
    def of(tensors: Iterable[tuple[str, Kind, tuple[int, ...], str]], classifier: Heads) -> Layout:
        """From name, kind, shape and type of each tensor in the network's order; each kind is
        counted from zero.
        """
        entries = []
        ends = {"param": 0, "buffer": 0, "counter": 0}
        for name, kind, shape, dtype in tensors:
            entries.append(Entry(name, kind, shape, ends[kind], dtype))
            ends[kind] += entries[-1].size
        return Layout(tuple(entries), classifier)

    @cached_property
    def variances(self) -> NDArray[np.bool_]:
        """Which of the buffers are batch norm's variances."""
        kinds = [
            np.full(e.size, e.name.endswith("running_var"))
            for e in self.entries
            if e.kind == "buffer"
        ]
        return np.concatenate([np.zeros(0, bool), *kinds])

    @cached_property
    def means_and_variances(self) -> list[tuple[slice, slice]]:
        """Where batch norm's running means lie among the buffers, each with its variances."""
        spans = {entry.name: entry.span for entry in self.entries if entry.kind == "buffer"}
        pairs = []
        for name, span in spans.items():
            layer, _, leaf = name.rpartition(".")
            variance = spans.get(f"{layer}.running_var")
            if leaf == "running_mean" and variance is not None:
                pairs.append((span, variance))
        return pairs

    def length(self, kind: str) -> int:
        return sum(entry.size for entry in self.entries if entry.kind == kind)

    def extent(self, extent: Extent) -> int:
        params = self.length("param")
        outputs = self.outputs
        lengths = {
            "params": params,
            "model": params + self.length("buffer"),
            "number": 1,
            "findings": outputs,
        }
        lengths |= {"groups": len(GROUP_COUNTS) * outputs + 2, "spread": len(SPREAD)}
        return self.parameters_in("classifier") if extent == "classifier" else lengths[extent]

    @property
    def heads(self) -> tuple[str, ...]:
        """The classifier's layers, in the order of their findings."""
        return head_names(self.classifier)

    def in_classifier(self, name: str) -> bool:
        """Whether a tensor belongs to the classifier."""
        return any(in_layer(name, head) for head in self.heads)

    @property
    def outputs(self) -> int:
        """How many outputs the classifier has."""
        return sum(self._outputs_of(head) for head in self.heads)

    def _outputs_of(self, head: str) -> int:
        return next((*entry.shape, 1)[0] for entry in self.entries if in_layer(entry.name, head))

    @property
    def batch_norm(self) -> NDArray[np.bool_]:
        """Which elements of a joined model belong to a layer with running statistics, whatever its
        name.
        """
        layers = {entry.name.rpartition(".")[0] for entry in self.entries if entry.kind == "buffer"}
        chosen = np.zeros(self.extent("model"), bool)
        for entry in self.entries:
            if entry.kind != "counter" and entry.name.rpartition(".")[0] in layers:
                start = entry.start + (self.length("param") if entry.kind == "buffer" else 0)
                chosen[start : start + entry.size] = True
        return chosen

    def rows_of(self, output: int) -> list[slice]:
        """Where the parameters of one of the classifier's outputs are: its row of weights and its
        bias.
        """
        for head in self.heads:
            rows = self._outputs_of(head)
            if output < rows:
                entries = [e for e in self.entries if e.kind == "param" and in_layer(e.name, head)]
                lengths = [
                    (entry.start, entry.size // rows)
                    for entry in entries
                    if entry.shape[:1] == (rows,)
                ]
                return [
                    slice(start + output * length, start + (output + 1) * length)
                    for start, length in lengths
                ]
            output -= rows
        raise UserError(f"the classifier has {self.outputs} outputs, and none after them")

    def rows_within(self, layer: str) -> list[NDArray[np.intp]]:
        """Of each output, where in a layer that holds the classifier its parameters are."""
        positions = np.arange(self.length("param"))
        place_in_layer = np.empty(len(positions), np.intp)
        within = positions[self.find(layer)]
        place_in_layer[within] = np.arange(len(within))
        return [
            np.concatenate([place_in_layer[row] for row in self.rows_of(output)])
            for output in range(self.outputs)
        ]

    def parameters_in(self, layer: str) -> int:
        """How many parameters a layer has."""
        where = self.find(layer)
        return where.stop - where.start if isinstance(where, slice) else len(where)

    def find(self, layer: str = "classifier", part: LayerPart = "both") -> slice | NDArray[np.intp]:
        """Where a layer's parameters are: `classifier`, `all`, or any layer by its name in the
        network.
        """
        prefixes = self.heads if layer == "classifier" else (layer,)
        params = [entry for entry in self.entries if entry.kind == "param"]
        chosen = [
            e
            for e in params
            if layer == "all" or any(in_layer(e.name, prefix) for prefix in prefixes)
        ]
        if not chosen:
            raise unknown(
                "layers", layer, {"classifier", "all", *(e.name.rpartition(".")[0] for e in params)}
            )
        chosen = [e for e in chosen if part == "both" or e.name.rpartition(".")[2] == part]
        if not chosen:
            raise UserError(f"layer '{layer}' has no {part}")
        start = chosen[0].start
        stop = chosen[-1].span.stop
        if sum(e.size for e in chosen) == stop - start:
            return slice(start, stop)
        return np.concatenate([np.arange(e.span.start, e.span.stop) for e in chosen])


@dataclass(frozen=True, eq=False)
class Model:
    """A network's state as three vectors, because the three kinds are treated differently.

    Parameters are what a method moves. Floating buffers (batch-norm statistics) are only ever
    averaged: a server step beyond the clients' values could make a variance negative. Counters are
    integers and keep their maximum.
    """

    params: Vector
    buffers: Vector
    counters: NDArray[np.int64]
    layout: Layout

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Name to array, in the network's order, then what is frozen: a state dict in numpy."""
        vectors = {"param": self.params, "buffer": self.buffers, "counter": self.counters}
        arrays = {
            e.name: vectors[e.kind][e.span].reshape(e.shape).astype(e.dtype)
            for e in self.layout.entries
        }
        return arrays | dict(self.layout.frozen)

    def joined(self) -> Vector:
        """Parameters, then floating buffers: a whole model as a client remembers it."""
        return np.concatenate([self.params, self.buffers])

    def statistics_moved(self, sent: Model) -> Vector:
        """How far each buffer is from that of the sent model, in units that fit it.

        A mean in standard deviations of its feature, a variance by how many times it has grown or
        shrunk, any other buffer by its own size. Zero: as it was sent.
        """
        now = self.buffers.astype(np.float64)
        before = sent.buffers.astype(np.float64)
        moved = (now - before) / (1 + np.abs(before))
        variances = self.layout.variances
        grown = (now[variances] + SMALLEST_VARIANCE) / (before[variances] + SMALLEST_VARIANCE)
        moved[variances] = np.maximum(grown, 1 / grown) - 1
        for mean, variance in self.layout.means_and_variances:
            deviation = np.sqrt(before[variance] + SMALLEST_VARIANCE)
            moved[mean] = (now[mean] - before[mean]) / deviation
        return np.asarray(moved)

    def with_joined(self, vector: Vector) -> Model:
        """The same network with what `joined` gave."""
        split = len(self.params)
        return Model(vector[:split], vector[split:], self.counters, self.layout)


def head_names(heads: Heads) -> tuple[str, ...]:
    """The layers of a classifier, of which there may be one or several."""
    return (heads,) if isinstance(heads, str) else heads


def in_layer(name: str, layer: str) -> bool:
    """Whether a tensor is a layer's, or of a layer inside it."""
    return name == layer or name.startswith(f"{layer}.")


def empty_model(layout: Layout, rows: int | None = None, dtype: Any = np.float32) -> Model:
    """Memory for one model, or for one per row."""
    shape = () if rows is None else (rows,)
    params, buffers = (
        np.empty((*shape, layout.length(kind)), dtype) for kind in ("param", "buffer")
    )
    return Model(params, buffers, np.empty((*shape, layout.length("counter")), np.int64), layout)


def blank_model(layout: Layout, rows: int | None = None) -> Model:
    """Memory for one model, or for one per row; float64 if a tensor has that type."""
    wide = any(entry.dtype == "float64" for entry in layout.entries)
    return empty_model(layout, rows, np.float64 if wide else np.float32)


def model_in_row(models: Model, row: int) -> Model:
    """One of the models that lie in the rows of `blank_model(layout, rows)`."""
    return Model(models.params[row], models.buffers[row], models.counters[row], models.layout)

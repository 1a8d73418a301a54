"""Ways in which an update can be bad, each with how the ledger's reason begins: for tests of every
door to the server.

`BAD` spoils one update of any method; `BAD_EXTRAS` what a method sends beside the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from feddraw.core import Update

Change = Callable[[Update], Update]


def with_vector(name: str, change: Callable[[np.ndarray], Any]) -> Change:
    """Another vector of the model."""
    return lambda update: replace(
        update, model=replace(update.model, **{name: change(getattr(update.model, name).copy())})
    )


def spoil(position: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(vector: np.ndarray) -> np.ndarray:
        vector[position] = value
        return vector

    return change


def with_number(**numbers: Any) -> Change:
    return lambda update: replace(update, **numbers)


def without_first_tensor(update: Update) -> Update:
    layout = update.model.layout
    return replace(
        update, model=replace(update.model, layout=replace(layout, entries=layout.entries[1:]))
    )


def renamed(update: Update) -> Update:
    layout = update.model.layout
    first = replace(layout.entries[0], name="other.weight")
    return replace(
        update,
        model=replace(update.model, layout=replace(layout, entries=(first, *layout.entries[1:]))),
    )


def negative_variance(update: Update) -> Update:
    place = next(
        e.span.start for e in update.model.layout.entries if e.name.endswith("running_var")
    )
    return with_vector("buffers", spoil(place, -1e-3))(update)


BAD: dict[str, tuple[Change, str]] = {
    "NaN": (with_vector("params", spoil(3, math.nan)), "parameters are not finite (first.weight)"),
    "infinity": (
        with_vector("params", spoil(-1, -math.inf)),
        "parameters are not finite (classifier.bias)",
    ),
    "huge": (
        with_vector("params", spoil(0, 3e38)),
        "parameters are not finite (finite, but beyond 1e+18)",
    ),
    "all huge": (
        with_vector("params", lambda v: v + np.float32(1e30)),
        "parameters are not finite (finite, but",
    ),
    "too short": (with_vector("params", lambda v: v[:-1]), "params of shape"),
    "too long": (with_vector("params", lambda v: np.append(v, v[:1])), "params of shape"),
    "empty": (with_vector("params", lambda v: v[:0]), "params of shape"),
    "a matrix": (with_vector("params", lambda v: v[None]), "params of shape"),
    "double precision": (
        with_vector("params", lambda v: v.astype(np.float64)),
        "params of type float64",
    ),
    "half precision": (
        with_vector("params", lambda v: v.astype(np.float16)),
        "params of type float16",
    ),
    "complex": (
        with_vector("params", lambda v: v.astype(np.complex64)),
        "params of type complex64",
    ),
    "objects": (with_vector("params", lambda v: v.astype(object)), "params of type object"),
    "words": (with_vector("params", lambda v: v.astype("U8")), "params of type <U8"),
    "a list": (with_vector("params", lambda v: v.tolist()), "params is no array"),
    "nothing": (with_vector("params", lambda v: None), "params is no array"),
    "NaN in a buffer": (
        with_vector("buffers", spoil(1, math.nan)),
        "buffers are not finite, or beyond 1e+18",
    ),
    "infinity in a buffer": (
        with_vector("buffers", spoil(0, math.inf)),
        "buffers are not finite, or beyond 1e+18",
    ),
    "huge buffer": (
        with_vector("buffers", spoil(0, 1e30)),
        "buffers are not finite, or beyond 1e+18",
    ),
    "huge negative buffer": (
        with_vector("buffers", spoil(0, -1e30)),
        "buffers are not finite, or beyond 1e+18",
    ),
    "too few buffers": (with_vector("buffers", lambda v: v[1:]), "buffers of shape"),
    "negative variance": (negative_variance, "a variance is negative"),
    "counter gone back": (with_vector("counters", spoil(0, -1)), "counters that no training gives"),
    "counter at its end": (
        with_vector("counters", spoil(0, 2**63 - 1)),
        "counters that no training gives",
    ),
    "counters as fractions": (
        with_vector("counters", lambda v: v.astype(np.float32)),
        "counters of type float32",
    ),
    "another network": (without_first_tensor, "another network"),
    "another name": (renamed, "another network"),
    "no images": (with_number(size=0), "size 0"),
    "negative size": (with_number(size=-5), "size -5"),
    "size not a number": (with_number(size=math.nan), "size nan"),
    "endless size": (with_number(size=math.inf), "size inf"),
    "size out of reach": (with_number(size=10**15), "size 1000000000000000"),
    "size as a word": (with_number(size="many"), "size many"),
    "no steps": (with_number(steps=0), "0 steps"),
    "negative steps": (with_number(steps=-1), "-1 steps"),
    "steps not a number": (with_number(steps=math.nan), "nan steps"),
    "loss not a number": (with_number(metrics={"loss": math.nan}), "loss is not a finite number"),
    "loss as a word": (with_number(metrics={"loss": "low"}), "loss is not a finite number"),
    "no loss": (with_number(metrics={}), "no training loss"),
}

BAD_EXTRAS: dict[str, tuple[Callable[[np.ndarray], Any], str]] = {
    "not finite": (lambda v: v * np.float32(math.nan), "{name} is not finite, or beyond 1e+18"),
    "huge": (lambda v: v + np.float32(1e30), "{name} is not finite, or beyond 1e+18"),
    "of another shape": (lambda v: np.ones(3, np.float32), "{name} of shape"),
    "of another type": (lambda v: v.astype(np.float64), "{name} of type float64"),
    "a list": (lambda v: v.tolist(), "{name} is no array"),
}

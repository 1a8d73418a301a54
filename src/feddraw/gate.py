"""The gate that every update passes, whatever engine it comes from: a broken one is refused, never averaged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from feddraw.core import Extent, Model, Update, squared_distance


@dataclass(frozen=True, eq=False)
class Verdict:
    """Why an update is refused (empty: it is accepted), and how far the client moved."""

    reason: str
    distance: float


def inspect(update: Update, sent: Model, sends: Mapping[str, Extent]) -> Verdict:
    """Shape, size, steps, and every number finite; `sends` is what the local rule sends beside the model."""
    reason = _form(update, sent) or _extra_form(update, sent, sends)
    if reason:
        return Verdict(reason, math.nan)
    distance = math.sqrt(squared_distance(update.model.params, sent.params))
    if not math.isfinite(distance):
        return Verdict(f"parameters are not finite ({_first_bad(update.model)})", math.nan)
    others = (update.model.buffers, *update.extra.values())
    if not all(np.isfinite(vector).all() for vector in others):
        return Verdict("buffers or extra vectors are not finite", math.nan)
    return Verdict("", distance)


def _form(update: Update, sent: Model) -> str:
    if update.model.layout is not sent.layout and update.model.layout != sent.layout:
        return "another network: its tensors differ in name, shape or type"
    for name in ("params", "buffers", "counters"):
        have, want = getattr(update.model, name), getattr(sent, name)
        if have.shape != want.shape:
            return f"{name} of shape {have.shape} where {want.shape} were sent"
        if have.dtype != want.dtype:
            return f"{name} of type {have.dtype} where {want.dtype} were sent"
    if not (math.isfinite(update.size) and update.size > 0):
        return f"size {update.size} is not a number of images"
    return "" if update.steps > 0 else f"{update.steps} steps: it has not trained"


def _extra_form(update: Update, sent: Model, sends: Mapping[str, Extent]) -> str:
    for name, extent in sends.items():
        want = (sent.layout.extent(extent),)
        if name not in update.extra:
            return f"no {name} beside the model"
        if update.extra[name].shape != want:
            return f"{name} of shape {update.extra[name].shape}, not {want}"
    return ""


def _first_bad(model: Model) -> str:
    params = [entry for entry in model.layout.entries if entry.kind == "param"]
    return next(entry.name for entry in params if not np.isfinite(model.params[entry.place]).all())

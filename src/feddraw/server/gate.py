"""The gate that every update passes, whatever engine it comes from: a broken one is refused, never
averaged.

`check_update_contents` reads all of an update but its parameters. `accept_by_distance` compares how
far clients moved: an update that is not finite is refused, and one that moved many times the
round's median is noted, refused, or clipped to some medians (Sun et al., 2019, clip to a fixed
length; a median needs no length that is known in advance). Directions are not compared:
docs/safety.md says what passes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

from feddraw.core import Cohort, Column, Extent, Model, Update, Vector
from feddraw.core.sums import squared_distance
from feddraw.errors import UserError, not_negative, one_of

HUGE = 1e18  # beyond, a square does not fit into float32: no trained network is there
MOST_STEPS = 10**9
MOST_IMAGES = 10**7


@dataclass(frozen=True)
class Gate:
    """What to do about updates that are well-formed but out of proportion."""

    norm: Literal["off", "warn", "refuse"] = (
        "warn"  # where a client moved more than `factor` times the median
    )
    factor: float = 10.0
    clip: float = 0.0  # medians that a longer move is cut to; 0 = no clipping
    max_size: int = MOST_IMAGES  # images that a client may say it has

    def __post_init__(self) -> None:
        """Refuse settings that no update could pass."""
        one_of("gate.norm", self.norm, ("off", "warn", "refuse"))
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise UserError(f"gate.factor must be at least 1, not {self.factor}")
        not_negative("gate.clip", self.clip)
        if self.max_size < 1:
            raise UserError(f"gate.max_size must be at least 1 image, not {self.max_size}")


@dataclass(frozen=True, eq=False)
class GateVerdict:
    """What the gate found: why an update is refused (empty: it is accepted), and how far the client
    moved.
    """

    reason: str
    distance: float = math.nan
    note: str = ""  # about an update that counts
    keep: float = 1.0  # share of the move that is left after clipping
    beside: Mapping[str, float] = field(
        default_factory=dict
    )  # lengths of the long vectors beside the model

    @property
    def status(self) -> str:
        """The ledger's text."""
        return (
            f"refused: {self.reason}"
            if self.reason
            else f"counted: {self.note}"
            if self.note
            else "counted"
        )


def check_update(
    update: Update, sent: Model, sends: Mapping[str, Extent], max_size: int
) -> GateVerdict:
    """Form, size, steps, and every number finite; `sends` is what goes up beside the model."""
    verdict = check_update_contents(update, sent, sends, max_size)
    if verdict.reason:
        return verdict
    return verdict_with_distance(
        update, verdict, math.sqrt(squared_distance(update.model.params, sent.params))
    )


def check_update_contents(
    update: Update, sent: Model, sends: Mapping[str, Extent], max_size: int
) -> GateVerdict:
    """The same without the parameters' values, which a server reads only once, when it sums
    them.
    """
    reason = (
        _form_refusal(update, sent)
        or _numbers_refusal(update, max_size)
        or _extra_refusal(update, sent, sends)
    )
    if reason:
        return GateVerdict(reason)
    vectors = {name: update.extra[name] for name in sends}
    beside = {
        name: math.sqrt(squared_distance(one, np.zeros_like(one))) for name, one in vectors.items()
    }
    if not (
        np.abs(update.model.buffers).max(initial=0) < HUGE
        and all(one < HUGE for one in beside.values())
    ):
        return GateVerdict(f"buffers or extra vectors are not finite, or beyond {HUGE:g}")
    long = [name for name, extent in sends.items() if extent in ("params", "model", "classifier")]
    return GateVerdict(
        _batch_norm_refusal(update.model, sent), beside={name: beside[name] for name in long}
    )


def verdict_with_distance(update: Update, verdict: GateVerdict, distance: float) -> GateVerdict:
    """The verdict with how far the client moved; a refusal where that is no number."""
    if distance < HUGE:
        return replace(verdict, distance=distance)
    return GateVerdict(f"parameters are not finite ({_first_layer_not_finite(update.model)})")


def _form_refusal(update: Update, sent: Model) -> str:
    if update.model.layout is not sent.layout and update.model.layout != sent.layout:
        return "another network: its tensors differ in name, shape or type"
    for name in ("params", "buffers", "counters"):
        own, other = getattr(update.model, name), getattr(sent, name)
        if reason := _array_refusal(name, own, other.shape, other.dtype):
            return reason
    if update.labelled is None:
        return ""
    reason = _array_refusal(
        "the list of labelled findings", update.labelled, (sent.layout.outputs,), np.dtype(bool)
    )
    return reason or ("" if update.labelled.any() else "it labels none of the findings")


def _numbers_refusal(update: Update, max_size: int) -> str:
    if not (_finite_number(update.size) and 0 < update.size <= max_size):
        return f"size {update.size!s:.20} is not a positive number up to {max_size}"
    if not _possible_steps(update.steps):
        return f"{update.steps!s:.20} steps: it has not trained"
    if "loss" not in update.metrics:
        return "no training loss among its metrics"
    bad = [name for name, value in update.metrics.items() if not _finite_number(value)]
    return f"{bad[0]!s:.20} is not a finite number" if bad else ""


def _possible_steps(value: Any) -> bool:
    return isinstance(value, Integral) and 0 < int(value) <= MOST_STEPS


def _finite_number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _extra_refusal(update: Update, sent: Model, sends: Mapping[str, Extent]) -> str:
    for name, extent in sends.items():
        if name not in update.extra:
            return f"no {name} beside the model"
        if reason := _array_refusal(
            name, update.extra[name], (sent.layout.extent(extent),), np.dtype(np.float32)
        ):
            return reason
        if extent in ("findings", "groups", "spread") and (update.extra[name] < 0).any():
            return f"{name} with a count below zero"
    return ""


def _array_refusal(name: str, have: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    if not isinstance(have, np.ndarray):
        return f"{name} is no array"
    if have.shape != shape:
        return f"{name} of shape {have.shape} where {shape} is needed"
    return "" if have.dtype == dtype else f"{name} of type {have.dtype} where {dtype} is needed"


def _first_layer_not_finite(model: Model) -> str:
    params = [entry for entry in model.layout.entries if entry.kind == "param"]
    bad = (entry.name for entry in params if not np.isfinite(model.params[entry.span]).all())
    return next(bad, f"finite, but beyond {HUGE:g}")


def _batch_norm_refusal(model: Model, sent: Model) -> str:
    """Batch norm: a negative variance makes the next model's outputs NaN, and a counter only goes
    up.
    """
    if ((model.buffers < 0) & model.layout.variances).any():
        return "a variance is negative"
    taken = model.counters - sent.counters
    return "" if ((taken >= 0) & (taken <= MOST_STEPS)).all() else "counters that no training gives"


def check_each_update(
    updates: Sequence[Update], sent: Model, sends: Mapping[str, Extent], clients: int, gate: Gate
) -> dict[int, GateVerdict]:
    """By client: whether it may answer at all, and whether the contents of its update are sound."""
    times = Counter(update.client for update in updates)
    found = {}
    for update in updates:
        if not 0 <= update.client < clients:
            found[update.client] = GateVerdict("not a client of this federation")
        elif times[update.client] > 1:
            found[update.client] = GateVerdict(
                f"answered {times[update.client]} times in one round"
            )
        else:
            found[update.client] = check_update_contents(update, sent, sends, gate.max_size)
    return found


def accept_by_distance(
    cohort: Cohort, distances: Column, checked: Mapping[int, GateVerdict], gate: Gate
) -> tuple[list[Update], dict[int, GateVerdict]]:
    """The updates that count, clipped where that is asked for, and the verdicts on all that were
    checked.

    `cohort` has the updates that were found sound, `distances` says how far each of them moved.
    """
    moves = zip(cohort.updates, distances.tolist(), strict=True)
    found = {
        update.client: verdict_with_distance(update, checked[update.client], distance)
        for update, distance in moves
    }
    found |= compare_with_median(
        {client: verdict for client, verdict in found.items() if not verdict.reason}, gate
    )
    accepted = [update for update in cohort.updates if not found[update.client].reason]
    counted = [
        _clipped_update(update, cohort.model, found[update.client].keep) for update in accepted
    ]
    return counted, {**checked, **found}


def compare_with_median(verdicts: Mapping[int, GateVerdict], gate: Gate) -> dict[int, GateVerdict]:
    """Each client's lengths against the median of all.

    With one or two clients nobody can be far from it.
    """
    if not verdicts:
        return {}
    median = _median_length([verdict.distance for verdict in verdicts.values()])
    names = next(iter(verdicts.values())).beside
    medians = {
        name: _median_length([verdict.beside[name] for verdict in verdicts.values()])
        for name in names
    }
    return {
        client: _compared_with_median(verdict, median, medians, gate)
        for client, verdict in verdicts.items()
    }


def _median_length(lengths: Sequence[float]) -> float:
    return (
        float(np.median(lengths)) or math.inf
    )  # where most have not moved, there is nothing to compare with


def _compared_with_median(
    verdict: GateVerdict, median: float, medians: Mapping[str, float], gate: Gate
) -> GateVerdict:
    times = verdict.distance / median
    far = [f"moved {times:.3g} times the median"] if times > gate.factor else []
    beside = {name: verdict.beside[name] / middle for name, middle in medians.items()}
    far += [
        f"{name} of {ratio:.3g} times the median"
        for name, ratio in beside.items()
        if ratio > gate.factor
    ]
    if far and gate.norm == "refuse":
        return replace(verdict, reason=f"{far[0]} (limit {gate.factor:g})")
    if 0 < gate.clip < times:
        note = f"clipped from {times:.3g} to {gate.clip:g} times the median"
        return replace(verdict, note=note, keep=gate.clip / times, distance=gate.clip * median)
    return replace(verdict, note=far[0]) if far and gate.norm == "warn" else verdict


def _clipped_update(update: Update, sent: Model, keep: float) -> Update:
    if keep == 1.0:
        return update

    def cut(origin: Vector, end: Vector) -> Vector:
        start = origin.astype(np.float64)
        return (start + keep * (end - start)).astype(origin.dtype)

    model = update.model
    params, buffers = cut(sent.params, model.params), cut(sent.buffers, model.buffers)
    return replace(update, model=replace(model, params=params, buffers=buffers))

"""The gate that every update passes, whatever engine it comes from.

A broken update is refused, never averaged. `inspect` looks at each by itself: form, size, steps,
and every number finite and within the bounds that the rule that asks for it declares. `accept`
takes how far clients moved, refuses what is not finite, and compares the rest: an update that moved
many times the round's median is noted, refused, or clipped to some medians (Sun et al., 2019, clip
to a fixed length; a median needs no length that is known in advance). Directions are not compared:
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

from feddraw.core import (
    HUGE,
    LEAST_SIZE,
    MOST_IMAGES,
    MOST_STEPS,
    Cohort,
    Column,
    Extra,
    Method,
    Model,
    Update,
    Vector,
    why_no_clipping,
)
from feddraw.core.sums import squared_distance
from feddraw.errors import UserError, not_negative, one_of
from feddraw.server.status import RefusalCause, Status, StatusKind

# Why an update is refused where the method looks at steps; whoever reads a client's answer adds
# where it should have told them.
NO_STEPS = "it does not say how many optimiser steps it took, which this method needs"


@dataclass(frozen=True)
class Gate:
    """What to do about updates that are well-formed but out of proportion."""

    # Where a client moved more than `factor` times the median.
    norm: Literal["off", "warn", "refuse"] = "warn"
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

    def check_method(self, method: Method) -> None:
        """Refuse to clip the moves of a method that needs them whole."""
        if self.clip and (reason := why_no_clipping(method)):
            raise UserError(
                f"gate.clip does not fit this method: {reason}; set gate.clip = 0 (gate.norm ="
                " refuse leaves long moves out), or choose another method"
            )


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the gate found: why an update is refused (empty: it is accepted), and how far the client
    moved.
    """

    reason: str
    distance: float = math.nan
    note: str = ""  # about an update that counts
    statistics: float = 0.0  # how far its batch-norm statistics moved (`Model.statistics_moved`)
    keep: float = 1.0  # share of the move that is left after clipping
    keep_statistics: float = 1.0  # the same for batch-norm statistics
    # Lengths of the long vectors beside the model.
    beside: Mapping[str, float] = field(default_factory=dict)
    # What the ledger says of an update with a reason: something is wrong with it, or it is sound
    # and the round was not aggregated (`UNUSED`).
    kind: StatusKind = StatusKind.REFUSED
    cause: RefusalCause = RefusalCause.OTHER  # of an update with a reason

    @staticmethod
    def not_finite(reason: str) -> Verdict:
        """On an update that has numbers that are NaN, infinite or too large."""
        return Verdict(reason, cause=RefusalCause.NOT_FINITE_UPDATE)

    @property
    def status(self) -> str:
        """The ledger's text."""
        if self.reason:
            return Status(self.kind, self.reason).text
        return Status(StatusKind.WEIGHTED, self.note).text


def check_update(update: Update, sent: Model, method: Method, max_size: int) -> Verdict:
    """Form, size, steps, and every number finite and within the bounds of an honest one.

    `method` says what goes up beside the model, and whether steps must be known.
    """
    verdict = check_contents(update, sent, method, max_size)
    if verdict.reason:
        return verdict
    distance = math.sqrt(squared_distance(update.model.params, sent.params))
    return _with_distance(update, verdict, distance)


def check_contents(update: Update, sent: Model, method: Method, max_size: int) -> Verdict:
    """The same but for the parameters' values, which a server reads only once, in the sum."""
    extras = method.extras
    malformed = (
        _form_refusal(update, sent)
        or _numbers_refusal(update, max_size)
        or _steps_refusal(update, method)
        or _extras_form_refusal(update, sent, extras)
    )
    if malformed:
        return Verdict(malformed)
    if not_finite := _not_finite_refusal(update, extras):
        return Verdict.not_finite(not_finite)
    impossible = _bounds_refusal(update, extras) or _buffers_refusal(update.model, sent)
    if impossible:
        return Verdict(impossible)
    statistics = float(np.linalg.norm(update.model.statistics_moved(sent)))
    return Verdict("", statistics=statistics, beside=_lengths_beside(update, extras))


def _with_distance(update: Update, verdict: Verdict, distance: float) -> Verdict:
    """The verdict with how far the client moved; a refusal where that is no number."""
    if distance < HUGE:
        return replace(verdict, distance=distance)
    where = _first_layer_not_finite(update.model)
    return Verdict.not_finite(f"parameters are not finite ({where})")


def _lengths_beside(update: Update, extras: Mapping[str, Extra]) -> dict[str, float]:
    """The lengths of the long vectors beside the model."""
    long = [e.name for e in extras.values() if e.extent in ("params", "model", "classifier")]
    return {name: _length(update.extra[name]) for name in long}


def _length(vector: Vector) -> float:
    return math.sqrt(squared_distance(vector, np.zeros_like(vector)))


def _form_refusal(update: Update, sent: Model) -> str:
    if update.model.layout is not sent.layout and update.model.layout != sent.layout:
        return "another network: its tensors differ in name, shape or type"
    for name in ("params", "buffers", "counters"):
        array = getattr(update.model, name)
        expected = getattr(sent, name)
        if reason := _array_refusal(name, array, expected.shape, expected.dtype):
            return reason
    if update.labelled is None:
        return ""
    reason = _array_refusal(
        "the list of labelled findings", update.labelled, (sent.layout.outputs,), np.dtype(bool)
    )
    return reason or ("" if update.labelled.any() else "it labels none of the findings")


def _numbers_refusal(update: Update, max_size: int) -> str:
    given: Any = update.size
    counted = finite_number(given) and not isinstance(given, bool)
    if not (counted and 0 < given <= max_size):
        plain = isinstance(given, Real) and not isinstance(given, bool)
        kind = "" if plain else f" of type {type(given).__name__}"
        return f"size {update.size!s:.20}{kind} is not a positive number up to {max_size}"
    if update.size < LEAST_SIZE:
        return f"size {update.size:.3g} is below {LEAST_SIZE:g}"
    return "" if "loss" in update.metrics else "no training loss among its metrics"


def _steps_refusal(update: Update, method: Method) -> str:
    """A client need not tell its steps, unless the method computes with them."""
    steps: Any = update.steps  # of whatever type a client has sent
    if steps is None:
        return NO_STEPS if method.needs.steps else ""
    possible = isinstance(steps, Integral) and 0 < int(steps) <= MOST_STEPS
    return "" if possible else f"{steps!s:.20} steps: it has not trained"


def finite_number(value: Any) -> bool:
    """Whether it is a number that a float can hold; a whole number may have any length."""
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:
        return False


def _extras_form_refusal(update: Update, sent: Model, extras: Mapping[str, Extra]) -> str:
    for name, extra in extras.items():
        if name not in update.extra:
            return f"no {name} beside the model"
        shape = (sent.layout.extent(extra.extent),)
        if reason := _array_refusal(name, update.extra[name], shape, np.dtype(np.float32)):
            return reason
    return ""


def _not_finite_refusal(update: Update, extras: Mapping[str, Extra]) -> str:
    """Of all that an update holds beside its parameters."""
    for name, value in update.metrics.items():
        if not finite_number(value):
            return f"{name!s:.20} is not a finite number"
    for name in extras:
        if not _length(update.extra[name]) < HUGE:
            return f"{name} is not finite, or beyond {HUGE:g}"
    if not np.abs(update.model.buffers).max(initial=0) < HUGE:
        return f"buffers are not finite, or beyond {HUGE:g}"
    return ""


def _bounds_refusal(update: Update, extras: Mapping[str, Extra]) -> str:
    for extra in extras.values():
        vector = update.extra[extra.name]
        outside = vector[(vector < extra.low) | (vector > extra.high)]
        if len(outside):
            return f"{extra.name} of {outside[0]:.6g} is not from {extra.low:g} to {extra.high:g}"
        if extra.extent == "groups" and (reason := _group_counts_refusal(vector)):
            return reason
    return ""


def _group_counts_refusal(counts: Vector) -> str:
    """Calls are of positives, and right answers of labels, so neither is more than they are."""
    positives_first, positives_second, called_first, called_second = counts[:-2].reshape(4, -1)
    labels, right = counts[-2:]
    possible = (called_first <= positives_first).all() and (called_second <= positives_second).all()
    if not (possible and labels > 0 and right <= labels):
        return "counts of groups that no images give"
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


def _buffers_refusal(model: Model, sent: Model) -> str:
    """Batch norm: a negative variance makes the next model's outputs NaN; counters only go up."""
    if ((model.buffers < 0) & model.layout.variances).any():
        return "a variance is negative"
    taken = model.counters - sent.counters
    if not ((taken >= 0) & (taken <= MOST_STEPS)).all():
        return "counters that no training gives"
    return ""


def inspect(
    updates: Sequence[Update], sent: Model, method: Method, clients: int, gate: Gate
) -> dict[int, Verdict]:
    """By client: whether it may answer at all, and whether its update is sound by itself."""
    answers = Counter(update.client for update in updates)
    verdicts = {}
    for update in updates:
        if not 0 <= update.client < clients:
            verdicts[update.client] = Verdict("not a client of this federation")
        elif answers[update.client] > 1:
            reason = f"answered {answers[update.client]} times in one round"
            verdicts[update.client] = Verdict(reason)
        else:
            verdicts[update.client] = check_contents(update, sent, method, gate.max_size)
    return verdicts


def accept(
    cohort: Cohort, distances: Column, verdicts: Mapping[int, Verdict], gate: Gate
) -> tuple[list[Update], dict[int, Verdict]]:
    """The updates that are aggregated, clipped where that is wanted, and the last verdict on all.

    `cohort` has the updates whose contents are sound, `distances` says how far each moved.
    """
    final = dict(verdicts)
    for update, distance in zip(cohort.updates, distances.tolist(), strict=True):
        final[update.client] = _with_distance(update, final[update.client], distance)
    finite = {client: verdict for client, verdict in final.items() if not verdict.reason}
    final |= compare_with_median(finite, gate)
    accepted = [
        _clipped(update, cohort.sent, final[update.client])
        for update in cohort.updates
        if not final[update.client].reason
    ]
    return accepted, final


def compare_with_median(verdicts: Mapping[int, Verdict], gate: Gate) -> dict[int, Verdict]:
    """Each client's lengths against the median of all.

    With one or two clients nobody can be far from it.
    """
    if not verdicts:
        return {}
    sound = list(verdicts.values())
    medians = Medians(
        distance=_median_length([verdict.distance for verdict in sound]),
        statistics=float(np.median([verdict.statistics for verdict in sound])),
        beside={
            name: _median_length([verdict.beside[name] for verdict in sound])
            for name in sound[0].beside
        },
    )
    return {
        client: _compared_with_median(verdict, medians, gate)
        for client, verdict in verdicts.items()
    }


@dataclass(frozen=True)
class Medians:
    """The middle of the clients' lengths in a round."""

    distance: float
    statistics: float  # 0 where most have not moved theirs
    beside: Mapping[str, float]


def _median_length(lengths: Sequence[float]) -> float:
    # Where most have not moved, there is nothing to compare with.
    return float(np.median(lengths)) or math.inf


def _statistics_times(verdict: Verdict, medians: Medians) -> float:
    """How many medians a client's batch-norm statistics moved. Training in evaluation mode leaves
    them as they are: where most have not moved, a client that moved its own is infinitely far.
    """
    if medians.statistics:
        return verdict.statistics / medians.statistics
    return math.inf if verdict.statistics else 0.0


def _in_medians(times: float) -> str:
    return f"{times:.3g} times the median" if math.isfinite(times) else "while most have not"


def _compared_with_median(verdict: Verdict, medians: Medians, gate: Gate) -> Verdict:
    times = verdict.distance / medians.distance
    statistics_times = _statistics_times(verdict, medians)
    ratios = {"moved": times, "batch-norm statistics moved": statistics_times}
    far = [f"{what} {_in_medians(ratio)}" for what, ratio in ratios.items() if ratio > gate.factor]
    for name, middle in medians.beside.items():
        ratio = verdict.beside[name] / middle
        if ratio > gate.factor:
            far.append(f"{name} of {ratio:.3g} times the median")
    if far and gate.norm == "refuse":
        return replace(verdict, reason=f"{far[0]} (limit {gate.factor:g})")
    if 0 < gate.clip < max(times, statistics_times):
        return _to_be_clipped(verdict, medians, gate)
    return replace(verdict, note=far[0]) if far and gate.norm == "warn" else verdict


def _to_be_clipped(verdict: Verdict, medians: Medians, gate: Gate) -> Verdict:
    """With the shares of its move and of its statistics' move that are left."""
    times = verdict.distance / medians.distance
    statistics_times = _statistics_times(verdict, medians)
    keep = min(1.0, gate.clip / times) if times else 1.0
    keep_statistics = keep
    notes = []
    if times > gate.clip:
        notes.append(f"clipped from {times:.3g} to {gate.clip:g} times the median")
    if statistics_times > gate.clip:
        keep_statistics = min(keep, gate.clip / statistics_times)
        cut = f"clipped from {statistics_times:.3g} times the median"
        if not keep_statistics:
            cut = "put back as sent, as most have not moved"
        notes.append(f"batch-norm statistics {cut}")
    return replace(
        verdict,
        note="; ".join(notes),
        keep=keep,
        keep_statistics=keep_statistics,
        distance=keep * verdict.distance if keep == 1.0 else gate.clip * medians.distance,
    )


def _clipped(update: Update, sent: Model, verdict: Verdict) -> Update:
    if verdict.keep == 1.0 and verdict.keep_statistics == 1.0:
        return update

    def cut(origin: Vector, end: Vector, keep: float) -> Vector:
        start = origin.astype(np.float64)
        return (start + keep * (end - start)).astype(origin.dtype)

    model = update.model
    params = model.params
    if verdict.keep < 1.0:
        params = cut(sent.params, params, verdict.keep)
    buffers = cut(sent.buffers, model.buffers, verdict.keep_statistics)
    return replace(update, model=replace(model, params=params, buffers=buffers))

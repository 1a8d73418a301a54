"""A policy above every rule: limits on how much a client may count, whatever the method says.

Between weighing and the server's step the weights are replaced by the nearest ones (in the
Euclidean norm) that keep the limits and sum to one; the same for layers and findings with their own
weights. Before weighing, a client that reports more images than `max_size` or `max_size_times`
allow counts with the largest number that is allowed. Weights within all limits keep their bits. A
method whose coefficients such limits would not bound refuses a policy. Where fewer clients than
`min_sites` could count, none does, and the model stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw import catalog
from feddraw.core import (
    Clause,
    Cohort,
    Effect,
    LimitedWeights,
    Method,
    Piece,
    Weights,
    why_no_policy,
)
from feddraw.errors import UserError, not_negative, unknown
from feddraw.system.file_reading import read_toml
from feddraw.text import parse_pairs

Floats = NDArray[np.float64]

FIXED = "fixed"
# Settings that can decide a weight.
POLICY_LIMITS = (
    "floor",
    "floor_times",
    "cap",
    "cap_times",
    FIXED,
)
UNMET_CAP = Clause("cap_times", Effect.UNMET)  # the only setting that can be unmet

SUM_ROUNDING = 1e-9  # rounding that a sum of shares may show
FEWEST_FOR_MEDIAN = 3  # clients for a median of sizes that one of them cannot move at will
FEWEST_SITES = 2  # of a federation: one site's model is no average of several


@dataclass(frozen=True)
class Policy:
    """Limits on the weights, for every client that counts in a round.

    Client names stand in text, as `--set` can.
    """

    floor: float = 0.0  # smallest weight of a client
    floor_times: float = 0.0  # the same, in multiples of the equal share
    cap: float = 1.0  # largest weight of a client
    cap_times: float = 0.0  # the same, in multiples of the equal share; 0: no such cap
    # "North=0.3, South=0.2": clients with a weight of their own, whatever the method says.
    fixed: str = ""
    # Images; a client that says it has more counts as having so many; 0: no limit.
    max_size: int = 0
    # The same, in medians of the round's sizes; from three clients on; 0: no limit.
    max_size_times: float = 0.0
    # Fewest clients that must count for the model to move; 0: 2 in a federation (Flower, FLARE; 3
    # under secure sums), 1 in a simulation and in `feddraw.aggregate`.
    min_sites: int = 0

    @staticmethod
    def of(table: Mapping[str, Any]) -> Policy:
        """From a table of settings; anything unknown or of the wrong type is refused."""
        catalog.check_setting_types(
            table, {field.name: field.default for field in fields(Policy)}, "policy"
        )
        return Policy(**table)

    @property
    def limits_weights(self) -> bool:
        return replace(self, max_size=0, max_size_times=0.0, min_sites=0) != Policy()

    def of_federation(self) -> Policy:
        """This policy among sites that do not share their data: one of them alone is not taken for
        all, unless the policy says so.
        """
        return self if self.min_sites else replace(self, min_sites=FEWEST_SITES)

    @cached_property
    def fixed_shares(self) -> dict[str, float]:
        """The fixed shares, by client."""
        example = "'North=0.3, South=0.2' (each client once)"
        return parse_pairs(self.fixed, _share, setting="policy.fixed", example=example)

    def check(self) -> None:
        """Refuse limits that no federation can keep."""
        for name in ("floor", "cap"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(
                    f"policy.{name} must be a share from 0 to 1, not {getattr(self, name)}"
                )
        if not 0 <= self.floor_times <= 1:
            raise UserError(f"policy.floor_times must be from 0 to 1, not {self.floor_times}")
        if self.cap_times and not (math.isfinite(self.cap_times) and self.cap_times >= 1):
            raise UserError(
                f"policy.cap_times must be 0 (no cap) or at least 1, not {self.cap_times}"
            )
        if self.floor > self.cap:
            raise UserError(f"policy.floor = {self.floor} is above policy.cap = {self.cap}")
        if self.max_size < 0:
            raise UserError(
                "policy.max_size must be a number of images, or 0 for no limit, not"
                f" {self.max_size}"
            )
        if 0 < not_negative("policy.max_size_times", self.max_size_times) < 1:
            raise UserError(
                "policy.max_size_times must be 0 (no limit) or at least 1, not"
                f" {self.max_size_times}"
            )
        if self.min_sites < 0:
            raise UserError(
                "policy.min_sites must be a number of clients, or 0 for the default, not"
                f" {self.min_sites}"
            )
        if sum(self.fixed_shares.values()) > 1 + SUM_ROUNDING:
            raise UserError(
                f"policy.fixed adds up to {sum(self.fixed_shares.values()):g}: it must be at most 1"
            )

    def check_clients(self, clients: Sequence[str]) -> None:
        """Refuse limits that these clients cannot keep even if all of them count, and names that
        none of them has.
        """
        for name in self.fixed_shares:
            if name not in clients:
                raise unknown("clients", name, clients)
        self.check_number(len(clients))
        if impossible := self.limits(clients).impossible:
            raise UserError(f"the policy is impossible with {len(clients)} clients: {impossible}")

    def check_number(self, most: int) -> None:
        """Refuse a least number of clients that no round has, if at most so many are asked."""
        if self.min_sites > most:
            raise UserError(
                f"policy.min_sites = {self.min_sites}, and no round asks more than {most} clients:"
                " the model would never move"
            )

    def check_method(self, method: Method) -> None:
        """Refuse a method whose clients' influence the limits would not limit."""
        if self.limits_weights and (reason := why_no_policy(method)):
            raise UserError(
                f"a policy cannot limit the weights of this method: {reason}; "
                "leave policy's floors, caps and fixed shares out, or choose another method"
            )

    def size_limit(self, sizes: Collection[float]) -> SizeLimit:
        """The most images that a client of a round can count with; `sizes` are those that the
        clients report.
        """
        limit = SizeLimit()
        if self.max_size:
            limit = SizeLimit(self.max_size, "max_size")
        if self.max_size_times and len(sizes) >= FEWEST_FOR_MEDIAN:
            most = self.max_size_times * float(np.median(list(sizes)))
            if all(size == int(size) for size in sizes):
                most = max(1.0, round(most))
            if most < limit.most:
                limit = SizeLimit(size_as_int_if_whole(most), "max_size_times")
        return limit

    def limits(self, clients: Sequence[str]) -> WeightLimits:
        """The smallest and largest weight of each client, where these count in a round."""
        equal_share = 1 / len(clients)
        floor = self.floor
        floor_setting = "floor"
        if self.floor_times * equal_share >= floor:
            floor = self.floor_times * equal_share
            floor_setting = "floor_times"
        cap = self.cap
        cap_setting = "cap"
        if self.cap_times and self.cap_times * equal_share < cap:
            cap = self.cap_times * equal_share
            cap_setting = "cap_times"
        fixed = np.array([name in self.fixed_shares for name in clients])
        fixed_shares = np.array([self.fixed_shares.get(name, 0.0) for name in clients])
        return WeightLimits(
            lower=np.where(fixed, fixed_shares, floor),
            upper=np.where(fixed, fixed_shares, cap),
            fixed=fixed,
            floor_setting=floor_setting,
            cap_setting=cap_setting,
            # so many times the share of one or two clients may be the whole
            cap_unmet=bool(self.cap_times) and cap >= 1,
        )

    def bounded(self, weights: Weights, cohort: Cohort, clients: Sequence[str]) -> Weights:
        """The nearest weights that keep the limits; those that keep them already stay as they
        are.
        """
        if not self.limits_weights:
            return weights
        limits = self.limits([clients[client] for client in cohort.clients])
        values, limited = limits.apply(weights.values)
        pieces = [_limited_piece(limits, piece) for piece in weights.pieces]
        return replace(weights, values=values, pieces=pieces, limited=limited)


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError(text)
    return share


@dataclass(frozen=True)
class SizeLimit:
    """The most images that a client of a round counts with, however many it reports."""

    most: float = math.inf
    setting: str = ""  # of the policy, which the limit comes from

    def counted(self, reported: float) -> float:
        """How many images count of those that a client reports."""
        return self.most if reported > self.most else reported

    def remark(self, reported: float) -> str:
        """For the ledger's status; empty where all images count."""
        if reported <= self.most:
            return ""
        return f"says {reported} images, {self.most} count (policy.{self.setting})"


@dataclass(frozen=True, eq=False)
class WeightLimits:
    """The smallest and largest weight of each client of a round, and which settings they
    come from.
    """

    lower: Floats
    upper: Floats
    fixed: NDArray[np.bool_]
    floor_setting: str  # of the policy, which the smallest weight comes from
    cap_setting: str  # and the largest
    cap_unmet: bool = False  # a cap in multiples of the equal share limits nobody

    @property
    def impossible(self) -> str:
        """Why no weights keep the limits; empty where some do."""
        least = float(self.lower.sum())
        most = float(self.upper.sum())
        if least > 1 + SUM_ROUNDING:
            return (
                f"their minimum weights add up to {least:.4g}, more than 1: lower"
                f" policy.{self.floor_setting}"
            )
        if most < 1 - SUM_ROUNDING:
            setting = "fixed" if self.fixed.all() else self.cap_setting
            return (
                f"their maximum weights add up to {most:.4g}, less than 1: raise policy.{setting}"
            )
        if (self.lower > self.upper).any():
            return f"policy.{self.floor_setting} is above policy.{self.cap_setting}"
        return ""

    def apply(self, values: Floats) -> tuple[Floats, LimitedWeights]:
        """The nearest weights within the limits, and what became of the ones before.

        Where too few clients are present to keep the limits, all limits are scaled by one factor,
        the mildest possible.
        """
        least = float(self.lower.sum())
        most = float(self.upper.sum())
        clauses: list[Clause | None]
        if least > 1 or most < 1:
            nearest = self.lower / least if least > 1 else self.upper / most
            eased = least > 1 + SUM_ROUNDING or most < 1 - SUM_ROUNDING
            setting = self.floor_setting if least > 1 else self.cap_setting
            effect = Effect.EASED if eased else Effect.DECIDED
            clauses = [Clause(FIXED if fixed else setting, effect) for fixed in self.fixed]
        else:
            nearest = nearest_within_limits(values, self.lower, np.maximum(self.lower, self.upper))
            clauses = [self._clause(i, values[i], nearest[i]) for i in range(len(values))]
        return nearest, LimitedWeights(values, nearest, tuple(clauses))

    def _clause(self, index: int, before: float, after: float) -> Clause | None:
        """The setting that decided a client's weight, or that could not; None where none did."""
        if self.fixed[index]:
            return Clause(FIXED)
        if before == after:
            return UNMET_CAP if self.cap_unmet else None
        if after == self.upper[index] < 1:
            return Clause(self.cap_setting)
        if after == self.lower[index] > 0:
            return Clause(self.floor_setting)
        return None


def nearest_within_limits(point: Floats, lower: Floats, upper: Floats) -> Floats:
    """The vector nearest to a point among those that sum to one with lower <= vector <= upper.

    It is clip(point - shift), with the one shift at which the sum is one (Held, Wolfe and Crowder,
    1974). The sum falls along straight lines between the shifts at which a number meets one of its
    limits: the line that crosses one is found by bisection and solved. A point that keeps the
    limits already is returned as it is.
    """
    if ((lower <= point) & (point <= upper)).all() and abs(point.sum() - 1) <= SUM_ROUNDING:
        return point
    corners = np.unique(np.concatenate([point - upper, point - lower]))
    # The sum is at least one at the first, at most one at the last.
    first = 0
    last = len(corners) - 1
    while last - first > 1:
        middle = (first + last) // 2
        above = np.clip(point - corners[middle], lower, upper).sum() >= 1
        first, last = (middle, last) if above else (first, middle)
    between = (corners[first] + corners[last]) / 2
    free = (lower < point - between) & (point - between < upper)
    held = np.where(point - between >= upper, upper, lower)[~free].sum()
    shift = (point[free].sum() + held - 1) / free.sum() if free.any() else between
    return np.asarray(np.clip(point - shift, lower, upper))


def remark_on_limit(limited: LimitedWeights, index: int) -> str:
    """For the ledger's status: how a client's weight met a limit; empty where none decided it, or
    it is fixed.
    """
    clause = limited.clauses[index]
    before = limited.before[index]
    after = limited.after[index]
    if clause is None or clause == Clause(FIXED):
        return ""
    match clause.effect:
        case Effect.EASED:
            return f"too few clients for policy.{clause.setting}, eased to {after:.4g}"
        case Effect.UNMET:
            return f"too few clients for policy.{clause.setting}, which limits nobody"
        case Effect.DECIDED:
            word = "held down" if after < before else "raised"
            return f"weight {word} from {before:.4g} to {after:.4g} by policy.{clause.setting}"


def read_clause(text: str) -> Clause | None:
    """From the ledger's text; None where it is empty, and a ValueError where no policy says so."""
    if not text:
        return None
    setting, space, effect = text.partition(" ")
    clause = Clause(setting, Effect(effect))
    is_possible = setting in POLICY_LIMITS and (bool(space) == bool(effect))
    if not is_possible or (clause.effect is Effect.UNMET and clause != UNMET_CAP):
        raise ValueError("a clause that no policy has")
    return clause


def _limited_piece(limits: WeightLimits, piece: Piece) -> Piece:
    values, limited = limits.apply(piece.values)
    return replace(piece, values=values, limited=limited)


def size_as_int_if_whole(size: float) -> float:
    return int(size) if size == int(size) else size


def read_policy(path: Path) -> Policy:
    """The `[policy]` of a TOML file, such as one that all sites of a federation have."""
    table = read_toml(path).get("policy")
    if not isinstance(table, dict):
        raise UserError(f"{path} has no section [policy]")
    return policy_of(table)


def policy_of(given: Policy | Mapping[str, Any] | Path | str | None) -> Policy:
    """A policy as code may give it: itself, its settings, a file with a section [policy], or
    nothing.
    """
    if isinstance(given, Path | str) and str(given):
        return read_policy(Path(given))
    if isinstance(given, Policy):
        policy = given
    elif isinstance(given, Mapping):
        policy = Policy.of(given)
    else:
        policy = Policy()
    policy.check()
    return policy

"""The updates of a round and the weights that a rule gives them. numpy only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.core.exchange import Proxy, Update
from feddraw.core.model import LayerPart, Model, Vector
from feddraw.core.sums import (
    Column,
    Segment,
    segments_of_sum,
    squared_distance,
    sum_moves,
    weighted_sum,
)
from feddraw.errors import RuleMistake, UserError

Matrix = NDArray[Any]  # floating, (clients, d)
Elements = slice | NDArray[np.intp]  # of the vector of parameters
# What explains a weight, by its column in the ledger (one of `PART_NAMES`): a number for each
# client, or one for all.
Parts = Mapping[str, NDArray[np.float64] | float | None]
PART_NAMES = (
    "prior",
    "similarity",
    "gamma",
    "beta",
    "reputation",
    "measured",
    "variance",
    "distance",
    "q",
    "q_expected",
    "rho",
)


def check_part_names(parts: Mapping[str, object]) -> None:
    """Refuse parts of a weight for which the ledger has no column."""
    for name in parts:
        if name not in PART_NAMES:
            raise RuleMistake(
                f"the ledger has no column for '{name}': the parts of a weight are called"
                f" {', '.join(PART_NAMES)}"
            )


@dataclass(frozen=True, eq=False)
class Facts:
    """What is known of a round's clients before any of them is weighed.

    Where all updates lie at the server, these are the clients whose updates were accepted; in a
    stream and under secure sums, those that were sampled.
    """

    round: int
    rounds: int
    sizes: Column  # (clients,), images, within the policy's limits
    labelled: NDArray[np.bool_] | None = None  # (clients, outputs); None where all label all
    # What a rule made of the first of two sums (`AfterFirstSum.conclude`).
    concluded: Column = field(default_factory=lambda: np.zeros(0))

    @property
    def priors(self) -> Column:
        """Each client's share of all their images."""
        return np.asarray(self.sizes / self.sizes.sum())

    def labelling(self, output: int, place: int) -> tuple[Facts, int | None]:
        """The same of those that label a finding, and a client's place among them, if any."""
        if self.labelled is None:
            return self, place
        labels_it = self.labelled[:, output]
        among = replace(self, sizes=self.sizes[labels_it], labelled=None)
        return among, int(labels_it[:place].sum()) if labels_it[place] else None


@dataclass(frozen=True, eq=False)
class ClientView:
    """What a client knows of itself when it is weighed: the model it was sent, and its update."""

    sent: Model
    update: Update

    def number(self, name: str) -> float:
        """What it sends as a single number beside its model."""
        return float(self.update.extra[name][0])

    def layer(self, layer: str = "classifier", part: LayerPart = "both") -> Vector:
        """(d_l,): its parameters of one layer."""
        return self.update.model.params[self.sent.layout.find(layer, part)]

    def move(self, layer: str = "classifier", part: LayerPart = "both") -> Vector:
        """(d_l,): how far it moved each parameter of one layer."""
        return self.layer(layer, part) - self.sent.params[self.sent.layout.find(layer, part)]

    @property
    def distance(self) -> float:
        """How far it moved."""
        return float(np.sqrt(squared_distance(self.update.model.params, self.sent.params)))

    def learnt(self, elements: Elements) -> NDArray[np.bool_] | None:
        """(d_l,): which of the parameters there belong to no finding that it leaves unlabelled."""
        labelled = self.update.labelled
        if labelled is None or labelled.all():
            return None
        where = np.arange(len(self.sent.params))[elements]
        mask = np.ones(len(where), dtype=bool)
        for output in np.flatnonzero(~labelled).tolist():
            for row in self.sent.layout.rows_of(output):
                mask[(where >= row.start) & (where < row.stop)] = False
        return mask


@dataclass(frozen=True, eq=False)
class Cohort:
    """The updates that a round aggregates, in client order, and the model that was sent."""

    round: int
    rounds: int
    sent: Model
    updates: Sequence[Update]
    population: int  # clients in the federation, present or not
    proxy: Proxy | None = None  # labelled images at the server, where the method needs some

    @cached_property
    def params(self) -> Matrix:
        """(clients, d); no copy where the updates lie in one matrix, as the engines leave them."""
        return _stacked([update.model.params for update in self.updates])

    @cached_property
    def buffers(self) -> Matrix:
        return _stacked([update.model.buffers for update in self.updates])

    @property
    def clients(self) -> tuple[int, ...]:
        return tuple(update.client for update in self.updates)

    @property
    def sizes(self) -> Column:
        return np.array([update.size for update in self.updates], dtype=np.float64)

    @property
    def steps(self) -> Column:
        """Optimiser steps by client; not a number where a client does not say."""
        steps = [math.nan if update.steps is None else update.steps for update in self.updates]
        return np.array(steps, dtype=np.float64)

    @cached_property
    def labelled(self) -> NDArray[np.bool_] | None:
        """(clients, outputs): who labels which finding; None where all label all."""
        if all(update.labelled is None or update.labelled.all() for update in self.updates):
            return None
        everything = np.ones(self.sent.layout.outputs, dtype=bool)
        rows = [everything if u.labelled is None else u.labelled for u in self.updates]
        return np.stack(rows)

    def facts(self) -> Facts:
        """What is known of these clients before they are weighed."""
        return Facts(self.round, self.rounds, self.sizes, self.labelled)

    def views(self) -> list[ClientView]:
        """Each client as it sees itself."""
        return [ClientView(self.sent, update) for update in self.updates]

    def learnt(self, elements: Elements) -> NDArray[np.bool_] | None:
        """(clients, d_l): which parameters there are of no finding that a client leaves out."""
        if self.labelled is None:
            return None
        masks = [view.learnt(elements) for view in self.views()]
        everything = np.ones(len(np.arange(len(self.sent.params))[elements]), dtype=bool)
        return np.stack([everything if mask is None else mask for mask in masks])

    @property
    def moves(self) -> Matrix:
        """(clients, d): how far each client moved. A copy as large as all updates."""
        return self.params - self.sent.params

    def layer(self, layer: str = "classifier", part: LayerPart = "both") -> Matrix:
        """(clients, d_l): the parameters of one layer."""
        return np.asarray(self.params[:, self.sent.layout.find(layer, part)])

    def extra(self, name: str) -> Matrix:
        """(clients, length): what each sent beside its model."""
        return _stacked([update.extra[name] for update in self.updates])

    def number(self, name: str) -> Column:
        """(clients,): what each sent as a single number."""
        return np.asarray(self.extra(name)[:, 0].astype(np.float64))

    @cached_property
    def distances(self) -> Column:
        """(clients,): how far each moved."""
        sent = self.sent.params
        return np.sqrt([squared_distance(update.model.params, sent) for update in self.updates])

    def averaged(self, coefficients: Column, segments: Sequence[Segment] = ()) -> Vector:
        """The sent parameters plus each client's move times its coefficient.

        `segments` are slices of the parameters with coefficients of their own.
        """
        return self.averaged_and_measured(coefficients, segments)[0]

    def averaged_and_measured(
        self, coefficients: Column, segments: Sequence[Segment] = ()
    ) -> tuple[Vector, Column]:
        """As `averaged`, and how far each client moved, in one pass over the memory."""
        sent = self.sent.params
        total = np.empty_like(sent)
        squares = np.zeros(len(self.updates))
        for span, column in segments_of_sum(len(total), coefficients, segments):
            squares += sum_moves(self.params[:, span], sent[span], column, out=total[span])
            if np.count_nonzero(column) == 1 and column.max() == 1.0:
                # One client is everything: its model to the bit.
                total[span] = self.params[int(column.argmax()), span]
        return total, np.sqrt(squares)

    def moved(self, by: Column, span: slice) -> Vector:
        """The sum of the clients' moves times these numbers, of some of the parameters."""
        return weighted_sum(by, self.params[:, span]) - float(by.sum()) * self.sent.params[span]


@dataclass(frozen=True, eq=False)
class ClosedCohort(Cohort):
    """The clients that a sum is over, where their models are not kept or were never seen.

    Their updates hold the sent model in place of their own. A rule that asks for a client's own
    model gets an error and not the sent one.
    """

    @cached_property
    def params(self) -> Matrix:
        raise self._not_here("models")

    @cached_property
    def buffers(self) -> Matrix:
        raise self._not_here("batch-norm statistics")

    @cached_property
    def distances(self) -> Column:
        raise self._not_here("moves")

    def extra(self, name: str) -> Matrix:
        raise self._not_here(f"'{name}'")

    @staticmethod
    def _not_here(what: str) -> UserError:
        return UserError(
            f"the rule looks at each client's own {what}, and a stream or a secure sum has only"
            " their sums: a rule that needs them says so by needs = Needs(layers='all')"
        )


def _stacked(rows: Sequence[Vector]) -> Matrix:
    """The rows as one matrix: the one they lie in already, if that is so, else a copy."""
    if len(rows) == 1:
        return rows[0][None]
    base = rows[0].base
    if isinstance(base, np.ndarray) and base.ndim == 2 and base.shape == (len(rows), len(rows[0])):
        addresses = [row.__array_interface__["data"] for row in rows]
        if addresses == [row.__array_interface__["data"] for row in base]:
            return base
    return np.stack(rows)


class Effect(StrEnum):
    """What a setting of the policy did to a weight."""

    DECIDED = ""
    EASED = "eased"  # too few clients to keep the setting, so it was scaled
    UNMET = "unmet"  # too few clients for it to limit anybody


@dataclass(frozen=True)
class Clause:
    """The setting of a policy that decided a client's weight, or could not."""

    setting: str
    effect: Effect = Effect.DECIDED

    def __str__(self) -> str:
        """As the ledger has it."""
        return f"{self.setting} {self.effect}" if self.effect else self.setting


@dataclass(frozen=True, eq=False)
class LimitedWeights:
    """What a policy made of a rule's weights."""

    before: Column
    after: Column
    clauses: tuple[Clause | None, ...]  # by client; None where no setting decided

    def clause_text(self, index: int) -> str:
        """Of one client, as the ledger has it; empty where no setting decided."""
        clause = self.clauses[index]
        return "" if clause is None else str(clause)


@dataclass(frozen=True, eq=False)
class Piece:
    """Weights that hold for some parameters only: a layer, or the classifier's row of a finding."""

    name: str
    spans: Sequence[slice]  # in the vector of parameters
    values: Column
    parts: Mapping[str, Column] = field(default_factory=dict)
    limited: LimitedWeights | None = None  # where a policy is in force


@dataclass(frozen=True, eq=False)
class Weights:
    """How much each client of a cohort counts, and the parts of the formula that explain it."""

    values: Column  # (clients,); they sum to one
    parts: Parts = field(default_factory=dict)
    pieces: Sequence[Piece] = ()  # parameters that have weights of their own
    limited: LimitedWeights | None = None  # where a policy is in force

    @property
    def segments(self) -> list[Segment]:
        """The pieces' weights, one slice of the parameters at a time."""
        return [(span, piece.values) for piece in self.pieces for span in piece.spans]

    def times(self, scale: Callable[[Column], Column]) -> tuple[Column, list[Segment]]:
        """The weights and the pieces' weights after a function; a piece without any keeps zeros."""
        segments = [
            (span, scale(values) if values.any() else values) for span, values in self.segments
        ]
        return scale(self.values), segments


Bound = Callable[[Cohort, Weights], Weights]  # weights within a policy's limits, and by finding


def normalize(scores: Column, **parts: Column) -> Weights:
    """Non-negative scores as weights that sum to one."""
    return Weights(scores / scores.sum(), parts)


def output_name(output: int) -> str:
    """The piece of one of the classifier's outputs, before it is given its finding's name."""
    return f"class {output}"


def columns_of(rows: Sequence[Mapping[str, float]]) -> dict[str, Column]:
    """One mapping per client as one column per name."""
    names: Iterator[str] = iter(rows[0]) if rows else iter(())
    return {name: np.array([row[name] for row in rows], dtype=np.float64) for name in names}

"""How the global model moves: what a server rule is, and what it may know of a round.

A `Server` sees sums over clients, never a client: all updates at once, a stream and an opened
secure sum offer it the same. `Factored` is the kind whose moves are also multiplied with what only
their client knows, `StandingMean` keeps the mean of what every client remembers, and `Joint` makes
the model and the weights together from all updates. numpy only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from feddraw.core.cohort import ClientView, Cohort, Weights
from feddraw.core.exchange import State
from feddraw.core.model import Layout, Model, Vector
from feddraw.core.sums import Column, weighted_sum
from feddraw.core.weighting import Needs


@dataclass(frozen=True, eq=False)
class Sums(ABC):
    """What a server rule may know of a round, whoever collected it."""

    cohort: Cohort  # who is in the sums; a `ClosedCohort` where their models do not lie here
    weights: Weights  # the share of each client, by piece where some parameters have their own
    coefficients: Column  # what each client's move was multiplied with
    total: Vector  # the sent parameters plus the moves, each times its coefficient

    def move(self) -> Vector:
        """The sum of the clients' moves, each times its coefficient."""
        return self.total - self.cohort.sent.params

    @abstractmethod
    def moved_by(self, by: Column, span: slice) -> Vector:
        """The moves of some parameters, times other numbers than the coefficients.

        A sum that is closed can only give multiples of the coefficients, and says so.
        """

    @abstractmethod
    def extra_by(self, name: str, by: Column, span: slice) -> Vector:
        """Of a vector that clients sent beside the model: the sum over clients of some of its
        numbers, times `by`. A closed sum refuses as `moved_by` does.
        """


@dataclass(frozen=True)
class Server:
    """The plain server: the new parameters are the clients' weighted average."""

    @property
    def needs(self) -> Needs:
        """What the rule looks at beside the sums."""
        return Needs()

    @property
    def scale(self) -> float:
        """What the weighted move is multiplied with."""
        return 1.0

    def init(self, model: Model) -> State:
        """The rule's state before the first round."""
        return {}

    def broadcast(self, state: State) -> dict[str, Vector]:
        """Vectors that every client gets beside the model."""
        return {}

    def step(self, sums: Sums, state: State) -> tuple[Vector, State]:
        """The new parameters, and the state for the next round."""
        return sums.total, state

    def coefficients_in_ledger(self, sums: Sums) -> Column:
        """What each client's move counts in the new model, as the ledger shows it."""
        return sums.coefficients

    def shown(self, model: Model, state: State) -> Model:
        """The model to evaluate and to keep, where it is not the one that is sent next."""
        return model


class Factored(Server, ABC):
    """Each move is also multiplied with a factor that only its client knows (FedNova, q-FedAvg).

    The coefficients are scale_by(mean term) · weight · factor, where factor and term are numbers of
    each client and the mean is by the weights. Limits on weights would not limit such coefficients.
    """

    @abstractmethod
    def factor(self, client: ClientView) -> float:
        """What a client's move is multiplied with beside its weight."""

    @abstractmethod
    def term(self, client: ClientView) -> float:
        """A number of a client whose weighted mean scales the step."""

    @abstractmethod
    def scale_by(self, mean_term: float) -> float:
        """What all moves are multiplied with, from the weighted mean of the terms."""

    def coefficients(self, weights: Column, factors: Column, terms: Column) -> Column:
        """What each move is multiplied with."""
        return np.asarray(self.scale_by(float(weights @ terms)) * weights * factors)


class StandingMean(Server):
    """A server that keeps the mean, over all clients, of a vector each remembers.

    See `standing_shares`. `averages` is the vector whose change clients send beside the model, or
    "moves" where the change follows from a client's move.
    """

    averages: str


@dataclass(frozen=True, eq=False)
class JointResult:
    """What a joint rule makes of a cohort."""

    params: Vector
    buffers: Vector
    coefficients: Column  # how much each client counts, for the ledger


class Joint(ABC):
    """A rule that makes the model from all updates: its weights fit no other server rule.

    `weigh` and `combine` are two steps, so that rows of findings which only some clients label can
    be limited to those in between.
    """

    @property
    def needs(self) -> Needs:
        """What the rule looks at."""
        return Needs(layers="all")

    def check(self, layout: Layout) -> None:
        """Refuse a network that does not fit the rule."""

    @abstractmethod
    def weigh(self, cohort: Cohort) -> Weights:
        """How much each client counts, by piece where the rule has some; zero: not at all."""

    @abstractmethod
    def combine(self, cohort: Cohort, weights: Weights) -> JointResult:
        """The new parameters and batch-norm statistics."""


def mean_buffers(cohort: Cohort, weights: Weights) -> Vector:
    """The new batch-norm statistics: always between the clients'."""
    return weighted_sum(weights.values, cohort.buffers)

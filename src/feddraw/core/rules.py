"""The central types: what travels to a client and back, the updates of a round, and the three rules
of a method.

A method is a `Local` rule (what a client changes in its training), a `Weighting` (how much each
client counts) and a `Server` rule (how the global model moves). Rules are frozen dataclasses, their
fields are the hyperparameters, and they are pure: state comes in as an argument and goes out as a
result. numpy only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from feddraw.core.model import (
    Extent,
    LayerPart,
    Layout,
    Model,
    Vector,
)
from feddraw.core.sums import (
    Column,
    Segment,
    segments_of_sum,
    squared_distance,
    sum_moves,
    weighted_sum,
)
from feddraw.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Matrix = NDArray[Any]  # floating, (clients, d)
Parts = Mapping[
    str, NDArray[np.float64] | float | None
]  # what explains a weight, by its name in the ledger
State = dict[
    str, Any
]  # nested dicts of arrays and numbers: whatever can be written to a checkpoint
Memory = dict[
    str, Vector
]  # what a client remembers from one round to the next; it never leaves the client

# What a weighting or server rule may ask of every client beside its model; a client answers only
# what is asked.
Measured = Literal["gradient mean", "classifier gradient mean", "gradient spread"]
Asked = Literal["loss", "accuracy", "labels", "gradient", "groups", "held"] | Measured
ASKED: Mapping[Asked, Extent] = {
    "loss": "number",  # of the received model, over the client's images, in evaluation mode
    "accuracy": "number",  # of the trained model: the share of labels that it gets right
    "labels": "findings",  # images with each finding
    "gradient": "params",  # of the loss at the received model
    "groups": "groups",  # how the received model treats two groups of patients, as counts
    # what the client remembered before this training, where the server keeps the mean
    # (`Local.held`)
    "held": "params",
    "gradient mean": "params",  # over some batches, at the received model, as `Measurement` says
    "classifier gradient mean": "classifier",  # the same for the classifier's parameters only
    # of those batches; zeros from a client that is too small to measure
    "gradient spread": "spread",
}
GRADIENT_MEANS: tuple[Asked, ...] = (
    "gradient mean",
    "classifier gradient mean",
)  # zeros where nothing was measured


@dataclass(frozen=True)
class Secure:
    """How a rule works where the server sees nothing but sums over clients (docs/privacy.md)."""

    sums: int  # masked sums in a round; 0: it cannot
    why_not: str = ""

    def __str__(self) -> str:
        return (
            f"no: {self.why_not}" if self.why_not else "one sum" if self.sums == 1 else "two sums"
        )


ONE_SUM, TWO_SUMS = Secure(1), Secure(2)


def not_secure(why: str) -> Secure:
    """A rule that needs more than sums, and why."""
    return Secure(0, why)


# ------------------------------------------------------------------------------------- what travels


@dataclass(frozen=True, eq=False)
class Job:
    """What the server asks of one client in one round."""

    round: int
    rounds: int
    client: int  # its number in the scenario
    seed: int  # drawn from run, round and client: the same under every engine
    model: Model
    broadcast: Mapping[str, Vector] = field(
        default_factory=dict
    )  # what the server rule sends beside the model
    effort: float = (
        1.0  # share of its steps that the client takes; less for one that cannot keep up
    )


@dataclass(frozen=True)
class Measurement:
    """Which batch gradients every client measures at the received model, the same for all clients
    of a run.
    """

    batches: int = 16  # at most
    batch_size: int = 16  # images; a client with fewer than two batches measures nothing
    every: int = 1  # rounds: it is done in rounds 0, every, 2 every, …
    evaluation: bool = False  # batch norm by its running statistics; left out: as in training

    BROADCAST_NAME: ClassVar[str] = "measurement"  # among what is sent beside the model

    def as_broadcast(self) -> dict[str, Vector]:
        """As it goes out beside the model, so that all clients measure alike whatever they were
        built with.
        """
        numbers = (self.batches, self.batch_size, self.every, self.evaluation)
        return {self.BROADCAST_NAME: np.array(numbers, np.float32)}

    @staticmethod
    def from_broadcast(broadcast: Mapping[str, Vector]) -> Measurement:
        """What `as_broadcast` gave; the default where nothing was sent."""
        numbers = broadcast.get(Measurement.BROADCAST_NAME)
        if numbers is None:
            return Measurement()
        if numbers.shape != (4,) or not (np.isfinite(numbers).all() and (numbers[:3] >= 1).all()):
            raise UserError("the server's measurement cannot be read: update feddraw here or there")
        batches, batch_size, every, evaluation = numbers.tolist()
        return Measurement(int(batches), int(batch_size), int(every), bool(evaluation))


@dataclass(frozen=True, eq=False)
class Update:
    """What comes back from one client."""

    client: int
    model: Model
    size: float  # images, a whole number; over Flower whatever positive number the app weighs by
    steps: int  # optimiser steps taken
    metrics: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Vector] = field(
        default_factory=dict
    )  # what the local rule sends beside the model
    labelled: NDArray[np.bool_] | None = (
        None  # (outputs,), the findings that the client labels; None = all
    )
    seconds: float = math.nan  # how long the client worked, where it says so


class Proxy(Protocol):
    """Labelled images at the server, for rules that weigh clients by their results on these
    images.
    """

    def loss(self, model: Model) -> float:
        """Mean loss over all the images, in evaluation mode."""

    def gradients(self, seed: int) -> Iterator[Callable[[Vector], Vector]]:
        """One pass in random order: for each batch, its gradient as a function of the parameters,
        in training mode.
        """


@dataclass(frozen=True, eq=False)
class Cohort:
    """The updates of one round that count, in client order, and the model that was sent."""

    round: int
    rounds: int
    model: Model  # the one that was sent
    updates: Sequence[Update]
    population: int  # clients in the federation, present or not
    proxy: Proxy | None = None  # where the method asks for one

    @cached_property
    def params(self) -> Matrix:
        """(clients, d); no copy where the updates lie in one matrix already, as the engines leave
        them.
        """
        return _stack_cohort_rows([update.model.params for update in self.updates])

    @cached_property
    def buffers(self) -> Matrix:
        return _stack_cohort_rows([update.model.buffers for update in self.updates])

    @property
    def clients(self) -> tuple[int, ...]:
        return tuple(update.client for update in self.updates)

    @property
    def sizes(self) -> NDArray[np.float64]:
        return np.array([update.size for update in self.updates], dtype=np.float64)

    @property
    def steps(self) -> NDArray[np.float64]:
        return np.array([update.steps for update in self.updates], dtype=np.float64)

    @cached_property
    def labelled(self) -> NDArray[np.bool_] | None:
        """(clients, outputs): who labels which finding; None where all label all."""
        if all(update.labelled is None or update.labelled.all() for update in self.updates):
            return None
        everything = np.ones(self.model.layout.outputs, dtype=bool)
        return np.stack(
            [everything if update.labelled is None else update.labelled for update in self.updates]
        )

    def learnt(self, elements: slice | NDArray[np.intp]) -> NDArray[np.bool_] | None:
        """(clients, d_l): which of the parameters there belong to no finding that a client leaves
        unlabelled.
        """
        if self.labelled is None:
            return None
        where = np.arange(len(self.model.params))[elements]
        found = np.ones((len(self.updates), len(where)), dtype=bool)
        for output in np.flatnonzero(~self.labelled.all(axis=0)).tolist():
            for row in self.model.layout.rows_of(output):
                inside = np.flatnonzero((where >= row.start) & (where < row.stop))
                found[np.ix_(~self.labelled[:, output], inside)] = False
        return found

    @property
    def deltas(self) -> Matrix:
        """(clients, d): how far each client moved.

        A copy as large as all updates; prefer `combine` for sums.
        """
        return self.params - self.model.params

    def piece(self, layer: str = "classifier", part: LayerPart = "both") -> Matrix:
        """(clients, d_l): the parameters of one layer."""
        return np.asarray(self.params[:, self.model.layout.find(layer, part)])

    def extra(self, name: str) -> Matrix:
        return _stack_cohort_rows([update.extra[name] for update in self.updates])

    def number(self, name: str) -> NDArray[np.float64]:
        """(clients,): what each sent as a single number."""
        return np.asarray(self.extra(name)[:, 0].astype(np.float64))

    @cached_property
    def distances(self) -> Column:
        """(clients,): how far each moved, in a pass of its own; `combine_and_measure` gives it with
        the sum.
        """
        return np.sqrt(
            [squared_distance(update.model.params, self.model.params) for update in self.updates]
        )

    def moved(self, by: Column, span: slice) -> Vector:
        """The sum of the clients' moves times these numbers, of some of the parameters."""
        return weighted_sum(by, self.params[:, span]) - float(by.sum()) * self.model.params[span]

    def extra_sum(self, name: str, by: Column, span: slice) -> Vector:
        """The sum of what the clients sent beside the model times these numbers, of some of its
        elements.
        """
        return weighted_sum(by, self.extra(name)[:, span])

    def factors(self, server: Server) -> Column:
        """What a server rule multiplies each client's move with, beside its weight."""
        return server.factors(self)

    def mean_term(self, server: Server, weights: Weights) -> float:
        """The weighted mean of a server rule's terms."""
        return float(weights.values @ server.terms(self))

    def combine(self, coefficients: Column, segments: Sequence[Segment] = ()) -> Vector:
        """The sent parameters plus each client's move times its coefficient; `segments` have their
        own coefficients.
        """
        return self.combine_and_measure(coefficients, segments)[0]

    def combine_and_measure(
        self, coefficients: Column, segments: Sequence[Segment] = ()
    ) -> tuple[Vector, Column]:
        """As `combine`, and how far each client moved, in one pass over the memory."""
        sent, total, squares = (
            self.model.params,
            np.empty_like(self.model.params),
            np.zeros(len(self.updates)),
        )
        for span, column in segments_of_sum(len(total), coefficients, segments):
            squares += sum_moves(self.params[:, span], sent[span], column, out=total[span])
            if (
                np.count_nonzero(column) == 1 and column.max() == 1.0
            ):  # one client is all: its model to the bit
                total[span] = self.params[int(column.argmax()), span]
        return total, np.sqrt(squares)

    def summed(self, weights: Weights) -> tuple[SummedCohort, Column]:
        """With the sum under these weights, and how far each client moved."""
        total, distances = self.combine_and_measure(weights.values, weights.segments)
        about = (self.round, self.rounds, self.model, self.updates, self.population, self.proxy)
        return SummedCohort(*about, weights=weights, total=total), distances

    def sum(self, coefficients: Column, segments: Sequence[Segment] = ()) -> Vector:
        """Each client's parameters times its coefficient: where these do not sum to one, the model
        is scaled.
        """
        total, _ = self.combine_and_measure(coefficients, segments)
        for span, column in segments_of_sum(len(total), coefficients, segments):
            total[span] += (float(column.sum()) - 1.0) * self.model.params[span]
        return total


@dataclass(frozen=True, eq=False)
class Facts:
    """What all clients that were asked know before each weighs itself, under secure sums."""

    round: int
    rounds: int
    sizes: Column  # (asked,), as announced and within the policy
    labelled: NDArray[np.bool_] | None = None  # (asked, outputs); None where all label all
    told: Column = field(
        default_factory=lambda: np.zeros(0)
    )  # what the server made of the first of two sums

    @property
    def priors(self) -> Column:
        """Each asked client's share of all their images."""
        return np.asarray(self.sizes / self.sizes.sum())

    def labelling(self, output: int, place: int) -> tuple[Facts, int | None]:
        """The same of those that label a finding, and a client's place among them, if it is one of
        them.
        """
        if self.labelled is None:
            return self, place
        who = self.labelled[:, output]
        return replace(self, sizes=self.sizes[who], labelled=None), (
            int(who[:place].sum()) if who[place] else None
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class SummedCohort(Cohort):
    """A cohort whose sum under its weights is known, so that the server's step need not read the
    updates again.
    """

    weights: Weights
    total: Vector

    def combine(self, coefficients: Column, segments: Sequence[Segment] = ()) -> Vector:
        known, asked = (
            [(slice(0), self.weights.values), *self.weights.segments],
            [(slice(0), coefficients), *segments],
        )
        pairs = zip(known, asked, strict=False)
        same = len(known) == len(asked) and all(
            a == b and np.array_equal(c, d) for (a, c), (b, d) in pairs
        )
        return self.total if same else super().combine(coefficients, segments)


def class_row_name(output: int) -> str:
    """The piece of one of the classifier's outputs, before it is given its finding's name."""
    return f"class {output}"


def _stack_cohort_rows(rows: Sequence[Vector]) -> Matrix:
    if len(rows) == 1:  # of a stream: no copy each time
        return rows[0][None]
    base = rows[0].base
    if isinstance(base, np.ndarray) and base.ndim == 2 and base.shape == (len(rows), len(rows[0])):
        own = [
            row.__array_interface__["data"] == base[i].__array_interface__["data"]
            for i, row in enumerate(rows)
        ]
        if all(own):
            return base
    return np.stack(rows)


# ---------------------------------------------------------------------------------------- the rules


@dataclass(frozen=True, eq=False)
class Correction:
    """How a local rule changes each training step; `w` are the parameters now, `w0` those that were
    received.

    The loss gains `<linear, w> + pull/2 |w - w0|² + penalty(images, features)`, so these act before
    clipping. `shift` is added to the clipped gradient, and `drift` to the step itself: w <- w - lr
    · drift.
    """

    linear: Vector | None = None
    pull: float = 0.0
    penalty: Callable[[Tensor, Tensor], Tensor] | None = (
        None  # of the images and the classifier's input
    )
    shift: Vector | None = None
    drift: Vector | None = None


@dataclass(frozen=True)
class Solver:
    """What a rule needs to know about the clients' optimiser."""

    optimizer: Literal["adam", "sgd"]
    lr: float
    momentum: float = 0.0


class Client(Protocol):
    """What a local rule may ask of the client it runs on."""

    solver: Solver

    def full_gradient(self) -> Vector:
        """Of the plain loss over all the client's images, at the received model."""

    def trained(self, start: Model, correction: Correction) -> Model:
        """Another model after this round's training."""

    def features_of(self, model: Model) -> Callable[[Tensor], Tensor]:
        """A frozen copy of a model, in evaluation mode: images to the classifier's input."""


@dataclass(frozen=True)
class Local:
    """The plain client: trains on its own loss and remembers nothing."""

    keeps: ClassVar[Mapping[str, Extent]] = {}  # what stays in a client's memory
    sends: ClassVar[Mapping[str, Extent]] = {}  # what goes up beside the model
    held: ClassVar[str] = (
        # which of `keeps` the server keeps the mean of, over all clients (see `standing_shares`)
        ""
    )
    secure: ClassVar[Secure] = ONE_SUM  # what it sends is masked as the move is
    starts_from_sent: ClassVar[bool] = (
        True  # training depends on the common model, so weights make a difference
    )

    def check(self, solver: Solver) -> None:
        """Refuse an optimiser that does not fit the rule."""

    def start(self, job: Job, memory: Memory) -> Model:
        """The model from which training starts."""
        return job.model

    def begin(self, job: Job, memory: Memory, client: Client) -> Correction:
        return Correction()

    def end(
        self, job: Job, update: Update, memory: Memory, client: Client
    ) -> tuple[dict[str, Vector], Memory]:
        """What to send beside the model, and what to remember."""
        return {}, {}

    def personal(self, shown: Model, memory: Memory) -> Model | None:
        """The model that this client uses itself, if that is not the global one."""
        return None


@dataclass(frozen=True, eq=False)
class LimitedWeights:
    """What a policy made of a rule's weights."""

    before: NDArray[np.float64]  # (clients,)
    after: NDArray[np.float64]
    clauses: tuple[str, ...]  # by client, the setting that decided its weight; empty where none did


@dataclass(frozen=True, eq=False)
class Piece:
    """Weights that hold for some of the parameters only: a layer, or what belongs to one
    finding.
    """

    name: str
    spans: Sequence[slice]  # in the vector of parameters
    values: NDArray[np.float64]  # (clients,)
    parts: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    limited: LimitedWeights | None = None  # where a policy is in force


@dataclass(frozen=True, eq=False)
class Weights:
    """How much each client of a cohort counts, a distribution, and the parts of the formula that
    explain it.
    """

    values: NDArray[np.float64]  # (clients,)
    parts: Parts = field(default_factory=dict)
    pieces: Sequence[Piece] = ()  # parameters that have weights of their own
    limited: LimitedWeights | None = None  # where a policy is in force

    @property
    def segments(self) -> list[Segment]:
        """The pieces' weights, one slice of the parameters at a time."""
        return [(span, piece.values) for piece in self.pieces for span in piece.spans]


Bound = Callable[[Cohort, Weights], Weights]  # replaces weights by ones within a policy's limits


@dataclass(frozen=True)
class Weighting(ABC):
    """How much each client counts."""

    needs: ClassVar[str] = "sizes"  # what it looks at; "steps" and "classifier" in it are acted on
    asks: ClassVar[tuple[Asked, ...]] = ()  # what every client must answer
    proxy: ClassVar[bool] = False  # it needs labelled images at the server
    cost: ClassVar[str] = "O(K)"  # of weighing K clients with d parameters
    streams: ClassVar[bool] = (
        False  # a client's weight follows from its own update, the sent model and the sizes
    )
    even: ClassVar[bool] = False  # all who are present count the same, in every round
    common: ClassVar[bool] = (
        False  # by size or equal: most methods have it, none is named for it but these two
    )
    sums_to_one: ClassVar[bool] = True  # everywhere in the model; if not, the weights also scale it
    made_for: ClassVar[type[Server] | None] = (
        None  # the only server rule that its weights fit, if not all
    )
    selects: ClassVar[bool] = (
        False  # it leaves clients out on purpose, so no floor may bring them back
    )
    by_output: ClassVar[bool] = False  # each output of the classifier has weights of its own
    secure: ClassVar[Secure] = not_secure(
        "its weighting does not say how a client could weigh itself"
    )

    def check(self, layout: Layout) -> None:
        """Refuse a network that does not fit the rule."""

    def init(self) -> State:
        return {}

    def broadcast(self, state: State) -> dict[str, Vector]:
        """Vectors that every client gets beside the model."""
        return {}

    @abstractmethod
    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        """Weights that sum to one, and the state for the next round."""

    def score(self, cohort: Cohort, prior: float) -> tuple[float, Mapping[str, float]]:
        """The logarithm of a client's weight up to a constant that all share, and the parts that
        explain it.

        For rules that stream. The cohort has that one client; `prior` is its share of all asked
        clients' images.
        """
        raise NotImplementedError(f"{type(self).__name__} does not stream")

    # Under secure sums (`secure`) each client weighs itself, by what it knows and what all were
    # told.

    def first_sum(self, cohort: Cohort, facts: Facts, place: int) -> Column:
        """What the cohort's one client adds to the first of two sums."""
        return np.zeros(0)

    def inform(
        self, total: Column, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Column, Parts, State]:
        """From the first sum over some of the asked: what all are told, parts for the ledger, and
        the next state.
        """
        return total, {}, state

    def score_range(self, prior: float, facts: Facts) -> tuple[float, float]:
        """The lowest and highest score that a client with this prior can have; -inf where no lowest
        is known before.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what scores are possible")

    def scores(self, facts: Facts) -> tuple[float, float]:
        """The lowest and highest score that any of the clients asked can have."""
        lows, highs = zip(
            *(self.score_range(prior, facts) for prior in facts.priors.tolist()), strict=True
        )
        return min(lows), max(highs)

    def own_weight(self, cohort: Cohort, facts: Facts, place: int) -> float:
        """How much the cohort's one client counts, up to a factor that all share; at most one but
        for few rules.
        """
        score, _ = self.score(cohort, float(facts.priors[place]))
        return math.exp(score - self.scores(facts)[1])

    def own_limits(self, facts: Facts, place: int) -> tuple[float, float]:
        """Between which numbers `own_weight` of a client lies, whatever it has trained: more it
        cannot claim.
        """
        low, high = self.score_range(float(facts.priors[place]), facts)
        top = self.scores(facts)[1]
        return math.exp(low - top), math.exp(high - top)

    def own_rows(self, cohort: Cohort, facts: Facts, place: int) -> dict[int, float]:
        """The same for outputs of the classifier that have weights of their own."""
        return {}

    def parts_of(self, own: Column, facts: Facts, places: Sequence[int]) -> Parts:
        """What explains the weights that these of the asked clients gave themselves, as far as a
        server can know.
        """
        return {}


@dataclass(frozen=True)
class Server:
    """The plain server: the new parameters are the clients' weighted average."""

    asks: ClassVar[tuple[Asked, ...]] = ()  # what every client must answer
    linear: ClassVar[bool] = (
        True  # but for what it remembers, the step is the moves times their coefficients
    )
    streams: ClassVar[bool] = True  # it looks at the clients' average only
    takes_weights: ClassVar[bool] = (
        True  # the weights decide its step; a median has no use for them
    )
    proportional: ClassVar[bool] = (
        True  # a client's coefficient is its weight times one number for all clients
    )
    limitable: ClassVar[bool] = (
        False  # if not proportional: limits on the weights still limit what a client does
    )
    adds_to_average: ClassVar[bool] = (
        True  # of a subclass: it differs from an average if the weights sum to one
    )
    secure: ClassVar[Secure] = ONE_SUM  # its step needs nothing but weighted means
    all_rows: ClassVar[bool] = (
        False  # it needs all clients' moves also in rows of findings that some do not label
    )
    announced: ClassVar[
        tuple[str, ...]
    ] = ()  # numbers beside the model that a secure client says in clear

    def init(self, model: Model) -> State:
        return {}

    def broadcast(self, state: State) -> dict[str, Vector]:
        """Vectors that every client gets beside the model."""
        return {}

    def coefficients(self, cohort: Cohort, weights: Weights) -> NDArray[np.float64]:
        """What each client's move is multiplied with; the weights themselves for an average."""
        return weights.values

    def factors(self, cohort: Cohort) -> Column:
        """What each client's move is multiplied with beside its weight, from what the client itself
        knows.
        """
        return np.ones(len(cohort.updates))

    def terms(self, cohort: Cohort) -> Column:
        """A number of each client whose weighted mean the coefficients need; zeros where none is
        needed.
        """
        return np.zeros(len(cohort.updates))

    def segments(self, cohort: Cohort, weights: Weights) -> list[Segment]:
        """The same for the pieces that have weights of their own."""
        whole = replace(weights, pieces=())
        return [
            # nobody counts where nobody present labels the finding, and a rule may divide by the
            # sum of the weights
            (span, self.coefficients(cohort, replace(whole, values=v)) if v.any() else v)
            for span, v in weights.segments
        ]

    def step(self, cohort: Cohort, weights: Weights, state: State) -> tuple[Vector, State]:
        return (
            cohort.combine(self.coefficients(cohort, weights), self.segments(cohort, weights)),
            state,
        )

    def buffers(self, cohort: Cohort, weights: Weights) -> Vector:
        """The new batch-norm statistics: always between the clients'."""
        return weighted_sum(weights.values, cohort.buffers)

    def shown(self, model: Model, state: State) -> Model:
        """The model to evaluate and to keep, where it is not the one that is sent next."""
        return model


@dataclass(frozen=True, eq=False)
class Aggregate:
    """What a method's rules make of a cohort."""

    model: Model
    weights: Weights
    coefficients: NDArray[np.float64]
    state: State


@dataclass(frozen=True)
class Method:
    """A federated method: three rules.

    A weighting fits any local rule, and the server rules that `misfit` accepts.
    """

    local: Local
    weighting: Weighting
    server: Server
    centralised: bool = (
        False  # all images in one place: no federation, but what it is compared with
    )
    limited: bool = (
        False  # a policy may change the weights, so that no weighting can be counted on to be even
    )

    def __post_init__(self) -> None:
        reason = misfit(self.weighting, self.server)
        if reason:
            raise UserError(reason)

    def init(self, model: Model) -> State:
        return {"weighting": self.weighting.init(), "server": self.server.init(model)}

    @property
    def asks(self) -> tuple[Asked, ...]:
        """What every client must answer, for the weighting or the server."""
        held = ("held",) if self.local.held and (self.limited or not self.weighting.even) else ()
        return tuple(
            name for name in ASKED if name in (*self.weighting.asks, *self.server.asks, *held)
        )

    @property
    def sends(self) -> dict[str, Extent]:
        return extras_of(self.local, self.asks)

    @property
    def streams(self) -> bool:
        return self.weighting.streams and self.server.streams

    @property
    def secure(self) -> Secure:
        """How it works under secure sums; the first reason why not."""
        if self.centralised:
            return not_secure("all images are in one place, so there is nothing to add up")
        for rule in (self.weighting, self.server, self.local):
            if not rule.secure.sums:
                return rule.secure
            if not _declares_secure(rule):
                return not_secure(f"{type(rule).__name__} does not declare how it works under them")
        if "held" in self.asks:
            return not_secure(
                "under unequal weights the server needs what each client remembers by its own share"
            )
        return Secure(
            max(self.weighting.secure.sums, self.server.secure.sums, self.local.secure.sums)
        )

    @property
    def only_weighs(self) -> bool:
        """Plain clients and a plain average: only its weighting differs from other methods."""
        averages = type(self.server) is Server or not self.server.adds_to_average
        return type(self.local) is Local and averages and not self.centralised

    def broadcast(self, state: State) -> dict[str, Vector]:
        return {
            **self.weighting.broadcast(state["weighting"]),
            **self.server.broadcast(state["server"]),
        }

    def aggregate(self, cohort: Cohort, state: State, bound: Bound | None = None) -> Aggregate:
        """Weigh and step; `bound` may change the weights in between (see `policy`)."""
        weights, weighting = self.weigh(cohort, state, bound)
        return self.step(cohort, weights, state | {"weighting": weighting})

    def weigh(
        self, cohort: Cohort, state: State, bound: Bound | None = None
    ) -> tuple[Weights, State]:
        """How much each client counts, and the weighting's next state."""
        weights, weighting = self.weighting.weigh(cohort, state["weighting"])
        return weights if bound is None else bound(cohort, weights), weighting

    def step(self, cohort: Cohort, weights: Weights, state: State) -> Aggregate:
        """What these weights give; the weighting's state is the next one already."""
        params, server = self.server.step(cohort, weights, state["server"])
        buffers = self.server.buffers(cohort, weights)
        counters = np.max([update.model.counters for update in cohort.updates], axis=0)
        model = Model(params, buffers, counters, cohort.model.layout)
        coefficients = self.server.coefficients(cohort, weights)
        return Aggregate(
            model, weights, coefficients, {"weighting": state["weighting"], "server": server}
        )

    def shown(self, model: Model, state: State) -> Model:
        return self.server.shown(model, state["server"])


def _declares_secure(rule: Weighting | Server | Local) -> bool:
    """Whether a rule or a base class of it declares `secure` itself; that of the plain rules is not
    inherited.
    """
    own = [kind for kind in type(rule).__mro__ if kind not in (Weighting, Server, Local)]
    return type(rule) in (Server, Local) or any("secure" in vars(kind) for kind in own)


def misfit(weighting: Weighting, server: Server) -> str:
    """Why a weighting and a server rule cannot work together; empty if they can."""
    given, taken = type(weighting).__name__, type(server).__name__
    if weighting.made_for is not None and not isinstance(server, weighting.made_for):
        return (
            f"the weights of {given} need the server rule {weighting.made_for.__name__}, not"
            f" {taken}"
        )
    if not server.takes_weights and not weighting.common:
        return f"the server rule {taken} takes no weights, so {given} would change nothing"
    return ""


def extras_of(local: Local, asks: Sequence[Asked]) -> dict[str, Extent]:
    """All vectors that a client sends beside its model: for the local rule, and in answer to what
    is asked.
    """
    return {**local.sends, **{name: ASKED[name] for name in asks}}


def normalize(scores: NDArray[np.float64], **parts: NDArray[np.float64]) -> Weights:
    """Non-negative scores as weights that sum to one."""
    return Weights(scores / scores.sum(), parts)

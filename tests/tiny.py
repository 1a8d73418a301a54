"""A federation small enough for a test: four clients, 8 × 8 images, a network of three layers with
batch norm.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from torch import nn

from feddraw import catalog
from feddraw.core import (
    BySize,
    Cohort,
    Entry,
    Job,
    Joint,
    Layout,
    Local,
    Memory,
    Method,
    Model,
    Server,
    State,
    Update,
    Weighted,
    Weighting,
    why_not_streaming,
)
from feddraw.engines.serial import Serial
from feddraw.experiment.run_preparation import initial_model
from feddraw.experiment.settings import Experiment, make_method
from feddraw.federation import Federation, OnUpdate
from feddraw.federation import federate as federate_with
from feddraw.server.aggregate import Aggregate
from feddraw.server.collectors import CohortSums, Streaming, Together, joined
from feddraw.server.gate import Gate, accept, inspect
from feddraw.server.partial_labels import divided_among_labelling
from feddraw.server.policy import Policy
from feddraw.server.round import Collector, Round, RoundResult
from feddraw.training.client import Trainer
from feddraw.training.loop import Examples
from feddraw.training.server_images import ServerImages
from feddraw.training.settings import Training

SIZES = (
    40,
    24,
    16,
    9,
)  # in batches of eight the last client's ninth image is left over and dropped
NAMES = ("North", "East", "South", "West")
TRAINING = Training(epochs=1, batch_size=8, lr=1e-2)


def build() -> tuple[nn.Module, str]:
    layers = OrderedDict(
        first=nn.Conv2d(1, 4, 3, bias=False),
        first_norm=nn.BatchNorm2d(4),
        first_relu=nn.ReLU(),
        second=nn.Conv2d(4, 6, 3, stride=2, bias=False),
        second_norm=nn.BatchNorm2d(6),
        second_relu=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(1),
        flat=nn.Flatten(),
        classifier=nn.Linear(6, 2),
    )
    return nn.Sequential(layers), "classifier"


@cache
def initial() -> Model:
    return initial_model(build, seed=0)


@cache
def examples(images: int = sum(SIZES)) -> Examples:
    """Two findings: a bright image, and one whose left half is brighter than the right."""
    pixels = np.random.default_rng(0).integers(0, 256, (images, 8, 8), dtype=np.uint8)
    bright = pixels.mean(axis=(1, 2)) > 127
    left = pixels[:, :, :4].mean(axis=(1, 2)) > pixels[:, :, 4:].mean(axis=(1, 2))
    return Examples(pixels, np.stack([bright, left], axis=1).astype(np.float32))


def shards(sizes: Sequence[int] = SIZES) -> list[np.ndarray]:
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def bench(
    method: Method, rows: Sequence[np.ndarray] | None = None, training: Training = TRAINING
) -> Serial:
    rows = shards() if rows is None else rows
    return Serial(
        Trainer(
            build, examples(1 + max(map(max, rows))), rows, training, method.local, asks=method.asks
        )
    )


def through_gate(
    updates: Sequence[Update], sent: Model, clients: int, gate: Gate
) -> tuple[list[Update], Any]:
    """The updates that count, and what the gate found about each client's."""
    verdicts = inspect(updates, sent, Method(Weighted(BySize())), clients, gate)
    sound = [update for update in updates if not verdicts[update.client].reason]
    cohort = Cohort(0, 1, sent, sound, clients)
    return accept(cohort, cohort.distances, verdicts, gate)


def federate(
    model: Model,
    method: Method,
    engine: Any,
    clients: Sequence[str],
    *,
    rounds: int,
    seed: int,
    start: int = 0,
    state: State | None = None,
    gate: Gate | None = None,
    policy: Policy | None = None,
    proxy: Any = None,
    collect: Collector | None = None,
    efforts: Callable[[int], Mapping[int, float]] | None = None,
    on_update: OnUpdate | None = None,
) -> Iterator[RoundResult]:
    """A federation whose server has all updates at once, unless `collect` says otherwise."""
    collect = collect or Together(gate or Gate(), policy or Policy(), proxy)
    federation = Federation(
        method=method,
        engine=engine,
        clients=clients,
        rounds=rounds,
        seed=seed,
        collect=collect,
        efforts=efforts,
        on_update=on_update,
    )
    return federate_with(federation, model, start=start, state=state)


def train(
    method: Method, rounds: int = 1, *, engine: Any = None, clients: int = 0, **options: Any
) -> list[RoundResult]:
    engine = engine or bench(method)
    names = NAMES[: clients or len(NAMES)]
    options = {"proxy": server_images()} | options
    model = options.pop("model", initial())
    return list(federate(model, method, engine, names, rounds=rounds, seed=0, **options))


@cache
def server_images() -> ServerImages:
    """For the methods that weigh clients by labelled images at the server."""
    return ServerImages(build, examples(), np.arange(0, 80, 10), batch_size=8)


# ------------------------------------------------------------------------------------------ methods

METHODS = catalog.names("methods")
FEWER: dict[str, dict[str, Any]] = {  # slow at the server; too few images
    "fedlaw": {"epochs": 2},
    "random_effects": {"batch_size": 4},
}


@cache
def method_of(name: str) -> Method:
    """A method or a mixture `A+B` by its name, with settings that suit this small federation."""
    return make_method(Experiment(method={"name": name} | FEWER.get(name.partition("+")[0], {})))


def weighting_of(method: Method) -> Any:
    """Its weighting; a joint rule weighs and steps by itself."""
    rule = method.aggregation
    return rule if isinstance(rule, Joint) else rule.weighting


def server_of(method: Method) -> Any:
    rule = method.aggregation
    return rule if isinstance(rule, Joint) else rule.server


def made_of(local: Local, weighting: Weighting, server: Server) -> Method:
    return Method(Weighted(weighting, server), local)


def mixed(weighting: Weighting, training: Method) -> Method:
    """The weighting with the local and the server rule of another method."""
    return made_of(training.local, weighting, server_of(training))


def with_server(method: Method, server: Server) -> Method:
    return made_of(method.local, weighting_of(method), server)


def streaming_methods() -> list[str]:
    return [name for name in METHODS if not why_not_streaming(method_of(name))]


def aggregate(method: Method, cohort: Cohort, state: State | None = None) -> Aggregate:
    """What the rules of a method make of a cohort, without gate, policy and ledger."""
    state = method.init(cohort.sent) if state is None else state
    rule = method.aggregation
    if isinstance(rule, Joint):
        return joined(rule, cohort, state)
    weights, weighting_state = rule.weighting.weigh(cohort, state["weighting"])
    weights = divided_among_labelling(cohort, weights)
    sums, _ = CohortSums.measured(rule, cohort, weights)
    return sums.aggregate(rule.server, state | {"weighting": weighting_state})


def covering(first: Sequence[str], second: Sequence[str]) -> list[tuple[str, str]]:
    """As few pairs as have each of the first and each of the second in them."""
    return [
        (first[number % len(first)], second[number % len(second)])
        for number in range(max(len(first), len(second)))
    ]


@dataclass(frozen=True, eq=False)
class Trained:
    """Four rounds of a method as they should be, for all tests that only look at them.

    Lists have an element for every round: what clients sent, and what each client then remembered.
    """

    method: Method
    results: list[RoundResult]
    updates: list[list[Update]]
    memory: list[dict[int, Memory]]

    def before(self, round: int) -> tuple[Model, State]:
        """The model that was sent in a round, and the server's state then."""
        if round == 0:
            return initial(), self.method.init(initial())
        return self.results[round - 1].next_model, self.results[round - 1].state

    def cohort(self, round: int, rounds: int = 4) -> Cohort:
        sent, _ = self.before(round)
        return Cohort(round, rounds, sent, self.updates[round], len(NAMES), server_images())

    def engine(self, rounds: int) -> Serial:
        """An engine whose clients have trained for so many rounds."""
        engine = bench(self.method)
        engine.memory = deepcopy(self.memory[rounds - 1])
        return engine


@cache
def trained(name: str) -> Trained:
    """Trained once in a process, however many tests look at it: nobody may change it."""
    method = method_of(name)
    engine = bench(method)
    updates: list[list[Update]] = []
    memory: list[dict[int, Memory]] = []
    results: list[RoundResult] = []

    def keep(arrived: list[Update]) -> list[Update]:
        updates.append([copied(update) for update in arrived])
        return arrived

    watched = Altered(engine, keep)
    rounds = federate(initial(), method, watched, NAMES, rounds=4, seed=0, proxy=server_images())
    for result in rounds:
        results.append(result)
        memory.append(deepcopy(engine.memory))
    return Trained(method, results, updates, memory)


def together(
    method: Method,
    sent: Model,
    state: State,
    updates: Sequence[Update],
    *,
    round: int = 1,
    rounds: int = 15,
    clients: Sequence[str] = NAMES,
    gate: Gate | None = None,
    policy: Policy | None = None,
) -> RoundResult:
    """One round of a server that has all updates at once."""
    collect = Together(gate or Gate(), policy or Policy(), server_images())
    sampled = range(len(clients))
    return collect(Round(round, rounds, sent, method, state, clients, sampled), updates)


def streamed(
    method: Method,
    sent: Model,
    state: State,
    updates: Sequence[Update],
    *,
    sizes: Sequence[int] | Mapping[int, int] = SIZES,
    round: int = 1,
    rounds: int = 15,
    clients: Sequence[str] = NAMES,
    gate: Gate | None = None,
) -> RoundResult:
    """One round of a server that sums updates as they come; `sizes` are those announced before,
    of all clients or by number of those that were sampled.
    """
    announced = dict(sizes if isinstance(sizes, Mapping) else enumerate(sizes))
    collect = Streaming(
        [announced.get(client, 1) for client in range(len(clients))], gate or Gate()
    )
    sampled = list(announced)
    return collect(Round(round, rounds, sent, method, state, clients, sampled), iter(updates))


# ------------------------------------------------------------------------------------------ updates


def kinds_of_client() -> list[str]:
    """A method for every local rule, and for everything that a client may be asked."""
    methods = {
        name: catalog.find("methods", name)() for name in ["fedavg", *catalog.names("methods")]
    }
    return list(
        {
            (type(m.local), m.asks, m.needs.server_images): name
            for name, m in reversed(methods.items())
        }.values()
    )


def same(one: Model, other: Model) -> bool:
    """Bit for bit."""
    return all(
        np.array_equal(getattr(one, n), getattr(other, n))
        for n in ("params", "buffers", "counters")
    )


def copied(update: Update) -> Update:
    """An update that holds beyond the round."""
    model = update.model
    model = replace(model, params=+model.params, buffers=+model.buffers, counters=+model.counters)
    return replace(
        update, model=model, extra={name: +vector for name, vector in update.extra.items()}
    )


def cohort_of(
    params: np.ndarray,
    sizes: Sequence[int],
    *,
    sent: np.ndarray | None = None,
    clients: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    extra: Sequence[Mapping[str, np.ndarray]] | None = None,
    round: int = 0,
    rounds: int = 15,
    population: int = 0,
) -> Cohort:
    """Updates given by their numbers, of a network that is one classifier; the sent model is at
    zero unless given.
    """
    rows = np.asarray(params, np.float32)
    count, length = rows.shape
    layout = Layout((Entry("classifier.weight", "param", (length,), 0),), "classifier")
    empty = np.zeros(0, np.float32), np.zeros(0, np.int64)
    clients, steps, extra = clients or range(count), steps or [1] * count, extra or [{}] * count
    updates = [
        Update(client, Model(row, *empty, layout), size, taken, {"loss": 0.0}, beside)
        for client, row, size, taken, beside in zip(clients, rows, sizes, steps, extra, strict=True)
    ]
    origin = np.zeros(length, np.float32) if sent is None else np.asarray(sent, np.float32)
    return Cohort(round, rounds, Model(origin, *empty, layout), updates, population or count)


class Altered:
    """An engine whose updates pass through a function on their way to the server."""

    def __init__(self, engine: Serial, change: Callable[[list[Update]], Sequence[Update]]) -> None:
        self.engine, self.change = engine, change

    @property
    def memory(self) -> dict[int, Memory]:
        return self.engine.memory

    def commit(self, clients: Collection[int]) -> None:
        self.engine.commit(clients)

    def train(self, jobs: Sequence[Job], *, in_turn: bool = False) -> Iterator[Update]:
        yield from self.change(list(self.engine.train(jobs)))


class Canned:
    """An engine that always answers with the same updates."""

    def __init__(self, updates: Sequence[Update]) -> None:
        self.updates = updates
        self.memory: dict[int, Any] = {}

    def commit(self, clients: Collection[int]) -> None:
        pass

    def train(self, jobs: Sequence[Job], *, in_turn: bool = False) -> Iterator[Update]:
        yield from self.updates

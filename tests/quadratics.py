"""Clients whose loss is ½ (y - c)ᵀ A (y - c), trained by the package's own loop.

The network is nothing but its parameters: for every image its logits are the vector y. A client's
images are dummies whose targets carry A and c, so an oracle that knows where y must land is checked
through `Trainer` and `federate`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from feddraw.core import Job, Memory, Method, Model, State, Update
from feddraw.engines.serial import Serial
from feddraw.server.gate import Gate
from feddraw.server.round import RoundResult
from feddraw.training.client import Trainer
from feddraw.training.loop import Examples
from feddraw.training.network import Network
from feddraw.training.objective import Presence
from feddraw.training.settings import Training
from tiny import federate


class Point(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(length))

    def forward(self, images: Tensor) -> Tensor:
        return self.weight.expand(len(images), -1)


def build(length: int) -> tuple[nn.Module, str]:
    return nn.Sequential(OrderedDict(classifier=Point(length))), "classifier"


def quadratic(logits: Tensor, targets: Tensor) -> Tensor:
    length = logits.shape[1]
    hessian, centre = targets[:, :-length].view(-1, length, length), targets[:, -length:]
    away = logits - centre
    return torch.einsum("bi,bij,bj->b", away, hessian, away).mean() / 2


def linear(logits: Tensor, targets: Tensor) -> Tensor:
    """<c, y>: the gradient is the centre itself, wherever y is."""
    return (logits * targets[:, -logits.shape[1] :]).sum(dim=1).mean()


@dataclass(frozen=True, eq=False)
class Bowl:
    """A client: its Hessian A, its centre c, and how many images it has.

    Scalars are vectors of length one.
    """

    hessian: np.ndarray | float
    centre: np.ndarray | float
    images: int = 2

    @property
    def A(self) -> np.ndarray:
        return np.atleast_2d(np.asarray(self.hessian, np.float64))

    @property
    def c(self) -> np.ndarray:
        return np.atleast_1d(np.asarray(self.centre, np.float64))

    @property
    def targets(self) -> np.ndarray:
        return np.tile(
            np.concatenate([self.A.ravel(), self.c]).astype(np.float32), (self.images, 1)
        )

    def gradient(self, y: np.ndarray | float) -> np.ndarray:
        return self.A @ (y - self.c)


def optimum(bowls: Sequence[Bowl], weights: Sequence[float] | None = None) -> np.ndarray:
    """Where the weighted sum of the clients' losses is smallest."""
    weights = [1.0] * len(bowls) if weights is None else weights
    hessian = sum(w * bowl.A for w, bowl in zip(weights, bowls, strict=True))
    return np.linalg.solve(
        hessian, sum(w * bowl.A @ bowl.c for w, bowl in zip(weights, bowls, strict=True))
    )


def optimum_by_row(bowls: Sequence[Bowl], shares: np.ndarray) -> np.ndarray:
    """Where each element of the sum of the clients' gradients is zero; `shares` has a row for each
    client and a column for each element.
    """
    length = shares.shape[1]
    hessian = np.zeros((length, length))
    right = np.zeros(length)
    for own, bowl in zip(shares, bowls, strict=True):
        hessian += own[:, None] * bowl.A
        right += own * (bowl.A @ bowl.c)
    return np.linalg.solve(hessian, right)


def descend(bowl: Bowl, y: np.ndarray, lr: float, steps: int) -> np.ndarray:
    """Gradient descent in closed form: c + (I - lr A)^k (y - c)."""
    return bowl.c + np.linalg.matrix_power(np.eye(len(bowl.c)) - lr * bowl.A, steps) @ (y - bowl.c)


@dataclass(frozen=True, eq=False)
class Played:
    """What a round left: the model, what each client came to, and what server and clients
    remember.
    """

    x: np.ndarray
    shown: np.ndarray
    clients: np.ndarray  # (clients, d)
    state: State
    memory: dict[int, Memory]
    weights: np.ndarray  # coefficients of the clients' moves
    result: RoundResult


class Level:
    """Images at the server on which every model is as good as any other."""

    def loss(self, model: Model) -> float:
        return 1.0


@dataclass(frozen=True, eq=False)
class Lossy:
    """An engine whose clients train, but whose updates do not all arrive."""

    engine: Serial
    lose: Callable[[int, int], bool]

    @property
    def memory(self) -> dict[int, Memory]:
        return self.engine.memory

    def commit(self, clients: Collection[int]) -> None:
        self.engine.commit(clients)

    def train(self, jobs: Sequence[Job], *, in_turn: bool = False) -> Iterator[Update]:
        for update in self.engine.train(jobs):
            if not self.lose(jobs[0].round, update.client):
                yield update


def play(
    method: Method,
    bowls: Sequence[Bowl],
    start: np.ndarray | float,
    *,
    rounds: int = 1,
    memory: Mapping[int, Memory] | None = None,
    state: State | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] = quadratic,
    present: Callable[[int], Sequence[int]] | None = None,
    lose: Callable[[int, int], bool] | None = None,
    labelled: Sequence[Sequence[bool]] | None = None,
    gate: Gate | None = None,
    **training: object,
) -> list[Played]:
    """Some rounds of full-batch SGD, one step each unless `training` says otherwise.

    `present` gives the clients of a round, `lose` says of a round and a client whether its update
    is lost, and `labelled` says by client which elements of y are findings that it labels: its
    loss must not depend on the others.
    """
    x = np.atleast_1d(np.asarray(start, np.float32))
    targets = np.concatenate([bowl.targets for bowl in bowls])
    ends = np.cumsum([bowl.images for bowl in bowls])
    rows = np.split(np.arange(len(targets)), ends[:-1])
    settings = Training(
        **{"epochs": 1, "batch_size": 1 << 20, "optimizer": "sgd", "lr": 0.1} | training
    )
    examples = Examples(np.zeros((len(targets), 1, 1), np.uint8), targets)
    trainer = Trainer(
        partial(build, len(x)), examples, rows, settings, method.local, Presence(loss), method.asks
    )
    if labelled is not None:
        trainer.labelled = [np.array(own) for own in labelled]
    engine = Serial(trainer)
    engine.memory = dict(memory or {})
    model = replace(Network(*build(len(x))).read(), params=x)
    names = [f"C{i + 1}" for i in range(len(bowls))]
    played, came = [], []
    options = {"rounds": rounds, "seed": 0, "state": state, "proxy": Level(), "gate": gate}
    if present is not None:
        options["efforts"] = lambda round: dict.fromkeys(present(round), 1.0)
    reached = engine if lose is None else Lossy(engine, lose)
    for result in federate(
        model,
        method,
        reached,
        names,
        **options,
        on_update=lambda _, u: came.append(+u.model.params),
    ):
        weights = np.array([entry.weight for entry in result.ledger])
        vectors = (
            result.next_model.params,
            result.model.params,
            np.stack(came) if came else np.empty((0, len(x))),
        )
        played.append(Played(*vectors, result.state, dict(engine.memory), weights, result))
        came.clear()
    return played

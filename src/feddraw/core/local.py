"""What a method changes in a client's training: `Local`, and what it may ask of the client.

The plain client trains on its own loss and remembers nothing. numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from feddraw.core.exchange import Extra, Job, Memory, Update
from feddraw.core.model import Extent, Model, Vector

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Correction:
    """How a local rule changes each step; `w` are the parameters now, `w0` those received.

    The loss gains `<linear, w> + pull/2 |w - w0|² + penalty(images, features)`, so these act before
    clipping. `shift` is added to the clipped gradient, and `drift` to the step itself:
    w <- w - lr · drift.
    """

    linear: Vector | None = None
    pull: float = 0.0
    # Of the images and of the classifier's input.
    penalty: Callable[[Tensor, Tensor], Tensor] | None = None
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

    def accuracy_of(self, model: Model) -> float:
        """The share of the client's labels that a model gets right, in evaluation mode."""

    def features_of(self, model: Model) -> Callable[[Tensor], Tensor]:
        """A frozen copy of a model, in evaluation mode: images to the classifier's input."""


@dataclass(frozen=True)
class Local:
    """The plain client: trains on its own loss and remembers nothing."""

    keeps: ClassVar[Mapping[str, Extent]] = {}  # what stays in a client's memory
    # Which of `keeps` the server keeps the mean of, over all clients (`StandingMean`).
    held: ClassVar[str] = ""

    @property
    def sends(self) -> tuple[Extra, ...]:
        """What goes up beside the model."""
        return ()

    def check(self, solver: Solver) -> None:
        """Refuse an optimiser that does not fit the rule."""

    def start(self, job: Job, memory: Memory) -> Model:
        """The model from which training starts."""
        return job.model

    def begin(self, job: Job, memory: Memory, client: Client) -> Correction:
        """How this round's training is changed."""
        return Correction()

    def end(
        self, job: Job, update: Update, memory: Memory, client: Client
    ) -> tuple[dict[str, Vector], Memory]:
        """What to send beside the model, and what to remember."""
        return {}, {}

    def personal(self, shown: Model, memory: Memory) -> Model | None:
        """The model that this client uses itself, if that is not the global one."""
        return None


@dataclass(frozen=True)
class OnItsOwn(Local):
    """A client that goes on from its own model and never from the common one.

    Its models go up, so that the gate and the ledger see them, but weights make no difference.
    """

    keeps = {"own": "model"}

    def start(self, job: Job, memory: Memory) -> Model:
        return self.personal(job.model, memory)

    def end(
        self, job: Job, update: Update, memory: Memory, client: Client
    ) -> tuple[dict[str, Vector], Memory]:
        return {}, {"own": update.model.joined()}

    def personal(self, shown: Model, memory: Memory) -> Model:
        return shown.with_joined(memory["own"]) if "own" in memory else shown

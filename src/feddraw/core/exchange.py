"""What travels between server and clients: jobs, updates, and what goes up beside a model.

numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from feddraw.core.model import Extent, Model, Vector
from feddraw.errors import UserError

# Nested dicts of arrays and numbers: whatever can be written to a checkpoint.
State = dict[str, Any]
Memory = dict[str, Vector]  # what a client keeps from one round to the next; it never leaves it

HUGE = 1e18  # beyond, a square does not fit into float32: no trained network is there
MOST_STEPS = 10**9
MOST_IMAGES = 10**7
LEAST_SIZE = 1e-9  # of a size that is no number of images: its share of a sum is not zero
MOST_LOSS = 1e6  # of a mean loss: no honest one is near it, and powers of it stay finite

# What a vector beside the model says. A sum of moves or gradients beside the weighted sum of moves
# can leave a single client's as their difference, so secure sums refuse some of them.
Holds = Literal["numbers", "gradients", "moves"]

Measured = Literal[
    "gradient mean", "classifier gradient mean", "gradient spread", "gradient variances"
]
Asked = (
    Literal["loss", "trained loss", "accuracy", "labels", "gradient", "groups", "held"] | Measured
)


@dataclass(frozen=True)
class Extra:
    """A vector that a client sends beside its model, and the bounds of an honest one."""

    name: str
    extent: Extent  # how long it is
    low: float = -HUGE
    high: float = HUGE
    holds: Holds = "numbers"
    words: str = ""  # for lists of what a method needs
    meaning: str = ""  # what to send, where its name does not say it; for messages


# What a weighting or a server rule may ask of every client; a client answers only what is asked.
LOSS = Extra("loss", "number", 0.0, MOST_LOSS, words="clients' loss")
TRAINED_LOSS = Extra("trained loss", "number", 0.0, MOST_LOSS, words="loss after training")
ACCURACY = Extra("accuracy", "number", 0.0, 1.0, words="clients' accuracy")
LABELS = Extra("labels", "findings", 0.0, MOST_IMAGES, words="label counts")
GRADIENT = Extra("gradient", "params", holds="gradients", words="clients' gradient")
GROUPS = Extra("groups", "groups", 0.0, MOST_IMAGES, words="group counts")
HELD = Extra("held", "params", holds="gradients", words="clients' memory")
GRADIENT_MEAN = Extra("gradient mean", "params", holds="gradients", words="batch gradients")
CLASSIFIER_GRADIENT_MEAN = Extra(
    "classifier gradient mean",
    "classifier",
    holds="gradients",
    words="batch gradients of the classifier",
)
GRADIENT_SPREAD = Extra("gradient spread", "spread", 0.0, words="their variance")
GRADIENT_VARIANCES = Extra(
    "gradient variances",
    "findings",
    0.0,
    words="their variance by finding",
    meaning="the variance of one image's gradient in each finding's row of the classifier",
)

# LOSS: of the received model, over the client's images, in evaluation mode. TRAINED_LOSS: the same
# of the trained model. ACCURACY: of the trained model, the share of labels that it gets right.
# LABELS: images with each finding. GRADIENT: of the loss at the received model. GROUPS: how the
# received model treats two groups of patients, as counts. HELD: what the client remembered before
# this training (`Local.held`). The others: over some batches at the received model, as
# `Measurement` says; zeros from a client that is too small to measure.
ASKED: Mapping[str, Extra] = {
    extra.name: extra
    for extra in (
        LOSS,
        TRAINED_LOSS,
        ACCURACY,
        LABELS,
        GRADIENT,
        GROUPS,
        HELD,
        GRADIENT_MEAN,
        CLASSIFIER_GRADIENT_MEAN,
        GRADIENT_SPREAD,
        GRADIENT_VARIANCES,
    )
}
GRADIENT_MEANS: tuple[str, ...] = (GRADIENT_MEAN.name, CLASSIFIER_GRADIENT_MEAN.name)


@dataclass(frozen=True, eq=False)
class Job:
    """What the server wants of one client in one round."""

    round: int
    rounds: int
    client: int  # its number in the scenario
    seed: int  # drawn from run, round and client: the same under every engine
    model: Model
    broadcast: Mapping[str, Vector] = field(default_factory=dict)  # sent beside the model
    effort: float = 1.0  # share of its steps that the client takes; less where it cannot keep up


@dataclass(frozen=True)
class Measurement:
    """Which batch gradients every client measures at the received model, the same for all."""

    batches: int = 16  # at most
    batch_size: int = 16  # images; a client with fewer than two batches measures nothing
    every: int = 1  # rounds: it is done in rounds 0, every, 2 every, …
    evaluation: bool = False  # batch norm by its running statistics; left out: as in training

    BROADCAST_NAME: ClassVar[str] = "measurement"  # among what is sent beside the model

    def as_broadcast(self) -> dict[str, Vector]:
        """As it goes out beside the model, so that all clients measure alike."""
        numbers = (self.batches, self.batch_size, self.every, self.evaluation)
        return {self.BROADCAST_NAME: np.array(numbers, np.float32)}

    @staticmethod
    def from_broadcast(broadcast: Mapping[str, Vector]) -> Measurement:
        """What `as_broadcast` gave; the default where nothing was sent."""
        numbers = broadcast.get(Measurement.BROADCAST_NAME)
        if numbers is None:
            return Measurement()
        readable = numbers.shape == (4,) and np.isfinite(numbers).all()
        if not (readable and (numbers[:3] >= 1).all()):
            raise UserError("the server's measurement cannot be read: update feddraw here or there")
        batches, batch_size, every, evaluation = numbers.tolist()
        return Measurement(int(batches), int(batch_size), int(every), bool(evaluation))


@dataclass(frozen=True, eq=False)
class Update:
    """What comes back from one client."""

    client: int
    model: Model
    size: float  # images, a whole number; over Flower whatever positive number the app weighs by
    steps: int | None  # optimiser steps taken; None where the client does not say
    metrics: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Vector] = field(default_factory=dict)  # what goes up beside the model
    labelled: NDArray[np.bool_] | None = None  # (outputs,): findings that it labels; None = all
    seconds: float = math.nan  # how long the client worked, where it says so

    @property
    def known_steps(self) -> int:
        """The steps, for rules that compute with them.

        At a client they are always known, and with `Needs(steps=True)` the gate refuses updates
        that do not tell them.
        """
        if self.steps is None:
            raise UserError(
                f"client {self.client} does not say how many optimiser steps it took, and this rule"
                " computes with them: declare needs = Needs(steps=True), so that such an update is"
                " refused"
            )
        return self.steps


class Proxy(Protocol):
    """Labelled images at the server, for rules that weigh clients by results on these images."""

    def loss(self, model: Model) -> float:
        """Mean loss over all the images, in evaluation mode."""

    def gradients(self, seed: int) -> Iterator[Callable[[Vector], Vector]]:
        """One pass in random order: for each batch, its gradient as a function of the parameters.

        Batch norm is in training mode.
        """

"""FedLAW: weights and a shrinking factor are learnt on labelled images at the server. (Li et al.,
ICML 2023)

The new parameters are exp(g) · sum of softmax(l)_i y_i. From l = log p and g = 0 in every round,
the loss on the server's images is minimised over l and g by Adam (betas .5 and .999), with batch
norm in training mode; its gradient follows from that of the merged model by the chain rule. The
authors' images are 2 % of the training data; ours are some validation images (`proxy`), equally
many with each finding. Buffers are averaged with the weights, never scaled, so under batch norm a
model that shrinks no longer fits its statistics; `shrink = false` keeps g at 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from feddraw.core import (
    Cohort,
    Local,
    Method,
    Piece,
    Server,
    State,
    Weighting,
    Weights,
    not_secure,
    weighted_sum,
)
from feddraw.core.schedules import Floats, size_prior, softmax
from feddraw.errors import not_negative, positive
from feddraw.methods.ldawa import LdawaServer


class AdamOfWeights:
    """One vector's worth of it, with the authors' betas."""

    def __init__(self, lr: float, length: int) -> None:
        self.lr, self.steps = lr, 0
        self.mean, self.square = np.zeros(length), np.zeros(length)

    def step(self, gradient: Floats) -> Floats:
        self.steps += 1
        self.mean = 0.5 * self.mean + 0.5 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        mean, square = self.mean / (1 - 0.5**self.steps), self.square / (1 - 0.999**self.steps)
        return np.asarray(-self.lr * mean / (np.sqrt(square) + 1e-8))


@dataclass(frozen=True)
class FedLawWeighting(Weighting):
    epochs: int = 20
    lr: float = 0.01
    shrink: bool = True

    needs = "sizes, all parameters"
    proxy = True
    secure = not_secure("the server mixes single models to learn their weights")
    sums_to_one = False
    made_for: ClassVar[type[Server] | None] = LdawaServer
    cost = "O(K d) and a training step, each of some hundred times"

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        assert cohort.proxy is not None
        prior = size_prior(cohort.sizes)
        learnt = np.append(np.log(prior), 0.0)  # l, and g last
        adam = AdamOfWeights(self.lr, len(learnt))
        for epoch in range(self.epochs):
            for gradient_at in cohort.proxy.gradients(cohort.round * self.epochs + epoch):
                values, scale = softmax(learnt[:-1], 1.0), np.exp(learnt[-1])
                gradient = gradient_at(weighted_sum(scale * values, cohort.params))
                along = scale * (cohort.params @ gradient).astype(
                    np.float64
                )  # the loss's change with each share
                mean = values @ along
                learnt += adam.step(
                    np.append(values * (along - mean), mean if self.shrink else 0.0)
                )
        values, scale = softmax(learnt[:-1], 1.0), np.exp(learnt[-1])
        everywhere = Piece("all parameters", [slice(0, len(cohort.model.params))], scale * values)
        return Weights(values, {"prior": prior}, [everywhere]), state


@dataclass(frozen=True)
class FedLawWithoutShrinking(FedLawWeighting):
    """Without the shrinking: weights that sum to one, which any server rule can take."""

    sums_to_one = True
    made_for = None


def fedlaw(epochs: int = 20, lr: float = 0.01, shrink: bool = True) -> Method:
    """Weights and a shrinking factor learnt on images at the server."""
    rule = FedLawWeighting if shrink else FedLawWithoutShrinking
    return Method(
        Local(), rule(not_negative("epochs", epochs), positive("lr", lr), shrink), LdawaServer()
    )

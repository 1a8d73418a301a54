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

import numpy as np

from feddraw.core import (
    Cohort,
    Joint,
    JointResult,
    Method,
    Needs,
    Piece,
    State,
    Weighted,
    Weighting,
    Weights,
    weighted_sum,
)
from feddraw.core.schedules import Floats, size_prior, softmax
from feddraw.errors import not_negative, positive
from feddraw.methods.ldawa import scaled_models

COST = "O(K d) and a training step, each of some hundred times"


class Adam:
    """Adam for one vector, with the authors' betas."""

    def __init__(self, lr: float, length: int) -> None:
        self.lr = lr
        self.steps = 0
        self.mean = np.zeros(length)
        self.square = np.zeros(length)

    def step(self, gradient: Floats) -> Floats:
        """What to add to the vector."""
        self.steps += 1
        self.mean = 0.5 * self.mean + 0.5 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        mean = self.mean / (1 - 0.5**self.steps)
        square = self.square / (1 - 0.999**self.steps)
        return np.asarray(-self.lr * mean / (np.sqrt(square) + 1e-8))


def learnt_on_server_images(
    cohort: Cohort, epochs: int, lr: float, *, shrink: bool
) -> tuple[Floats, float]:
    """The clients' weights, and the factor exp(g) of the model; 1 without shrinking."""
    assert cohort.proxy is not None
    logits_and_g = np.append(np.log(size_prior(cohort.sizes)), 0.0)
    adam = Adam(lr, len(logits_and_g))
    for epoch in range(epochs):
        for gradient_at in cohort.proxy.gradients(cohort.round * epochs + epoch):
            values = softmax(logits_and_g[:-1], 1.0)
            scale = np.exp(logits_and_g[-1])
            gradient = gradient_at(weighted_sum(scale * values, cohort.params))
            # How the loss changes with each client's share.
            along = scale * (cohort.params @ gradient).astype(np.float64)
            mean = values @ along
            slope = np.append(values * (along - mean), mean if shrink else 0.0)
            logits_and_g += adam.step(slope)
    return softmax(logits_and_g[:-1], 1.0), float(np.exp(logits_and_g[-1]))


@dataclass(frozen=True)
class LearntWeightsAndScale(Joint):
    """With shrinking: the weights also scale the model, so no other server rule can take them."""

    epochs: int = 20
    lr: float = 0.01

    needs = Needs(sizes=True, layers="all", server_images=True, cost=COST)

    def weigh(self, cohort: Cohort) -> Weights:
        values, scale = learnt_on_server_images(cohort, self.epochs, self.lr, shrink=True)
        whole_model = [slice(0, len(cohort.sent.params))]
        scaled = Piece("all parameters", whole_model, scale * values)
        return Weights(values, {"prior": size_prior(cohort.sizes)}, [scaled])

    def combine(self, cohort: Cohort, weights: Weights) -> JointResult:
        return scaled_models(cohort, weights)


@dataclass(frozen=True)
class LearntWeights(Weighting):
    """Without shrinking: weights that sum to one, which any server rule can take."""

    epochs: int = 20
    lr: float = 0.01

    needs = Needs(sizes=True, layers="all", server_images=True, cost=COST)

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        values, _ = learnt_on_server_images(cohort, self.epochs, self.lr, shrink=False)
        return Weights(values, {"prior": size_prior(cohort.sizes)}), state


def fedlaw(epochs: int = 20, lr: float = 0.01, shrink: bool = True) -> Method:
    """Weights and a shrinking factor learnt on images at the server."""
    not_negative("epochs", epochs)
    positive("lr", lr)
    if shrink:
        return Method(LearntWeightsAndScale(epochs, lr))
    return Method(Weighted(LearntWeights(epochs, lr)))

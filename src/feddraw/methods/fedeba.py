"""FedEBA+, its aggregation: clients that the sent model serves badly count more. (Wang et al.,
2024)

w is proportional to q exp(F / temperature), F the client's loss at the sent model, q equal or by
size: the weights of largest entropy for a given mean loss. The paper's alignment of models and
gradients is not part of it here, and no code is public. A high temperature is uniform averaging.
The default temperature is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from feddraw.core import Cohort, Facts, Local, Method, Server, State, Weights
from feddraw.core.schedules import size_prior, softmax
from feddraw.errors import one_of, positive
from feddraw.methods.fedcav import WeighsAgainstMeanLoss

Start = Literal["uniform", "size"]


@dataclass(frozen=True)
class FedEbaWeighting(WeighsAgainstMeanLoss):
    temperature: float = 0.1
    start: Start = "uniform"

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        prior = size_prior(cohort.sizes if self.start == "size" else np.ones(len(cohort.updates)))
        scores = cohort.number("loss")
        values = softmax(scores / self.temperature + np.log(prior), 1.0)
        return Weights(values, {"prior": prior, "reputation": scores}), state

    def own_weight(self, cohort: Cohort, facts: Facts, place: int) -> float:
        """Above one for a client with a loss above the mean."""
        prior = facts.sizes[place] / facts.sizes.max() if self.start == "size" else 1.0
        return float(prior) * math.exp(
            min(100.0, (cohort.number("loss")[0] - facts.told[0]) / self.temperature)
        )

    def own_limits(self, facts: Facts, place: int) -> tuple[float, float]:
        return 0.0, math.inf  # a loss has no upper bound


def fedeba(temperature: float = 0.1, start: Start = "uniform") -> Method:
    """Weights rise with the loss at the sent model."""
    rule = FedEbaWeighting(
        positive("temperature", temperature), one_of("start", start, ("uniform", "size"))
    )
    return Method(Local(), rule, Server())

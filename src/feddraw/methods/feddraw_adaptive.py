"""FedDRAW with an adaptive gamma: the weight of size decays only while similarities are stable. See
docs/extensions.md.

gamma <- gamma · exp(-eta · rho), where rho in [0, 1] is the correlation over clients between this
round's similarities and the last. A steady signal gives FedDRAW itself; one that is noise leaves
the weights with size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from feddraw.core import (
    Cohort,
    Column,
    Layout,
    Method,
    State,
    Weighted,
    Weighting,
    Weights,
    of_present,
    with_present,
)
from feddraw.core.schedules import BETA_MAX, ETA, LAM, Annealing, Reading, weights_and_parts
from feddraw.methods.feddraw import NEEDS, similarity_to_sent


def steadiness(before: Column, now: Column) -> float:
    """Their correlation, zero if negative; one where all clients are alike."""
    if not len(before):
        return 1.0
    first = before - before.mean()
    second = now - now.mean()
    length = math.sqrt((first @ first) * (second @ second))
    return float(np.clip(first @ second / length, 0, 1)) if length > 1e-15 else 1.0


@dataclass(frozen=True)
class AdaptiveAnnealing(Weighting):
    annealing: Annealing = field(default_factory=Annealing)

    needs = NEEDS

    def check(self, layout: Layout) -> None:
        layout.find("classifier")

    def init(self) -> State:
        first_gamma, _ = self.annealing.at(0, 1)
        return {"similarity": {}, "decay": -math.log(first_gamma)}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        views = cohort.views()
        similarity = np.array([similarity_to_sent(view, "classifier", "both") for view in views])
        last = of_present(state["similarity"], cohort)
        known = np.isfinite(last)
        rho = steadiness(last[known], similarity[known])
        decay = state["decay"] + (self.annealing.eta * rho if cohort.round else 0.0)
        _, beta = self.annealing.at(cohort.round, cohort.rounds)
        result = weights_and_parts(cohort.sizes, similarity, math.exp(-decay), beta)
        similarities = with_present(state["similarity"], cohort, similarity.tolist())
        next_state = {"similarity": similarities, "decay": decay}
        return Weights(result.weight, result.parts), next_state


def feddraw_adaptive(
    eta: float = ETA, lam: float = LAM, beta_max: float = BETA_MAX, reading: Reading = "reported"
) -> Method:
    """FedDRAW that trusts similarity as far as it is steady."""
    return Method(Weighted(AdaptiveAnnealing(Annealing(eta, lam, beta_max, reading))))

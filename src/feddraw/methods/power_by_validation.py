"""Size to a power that validation chooses at the end of every phase: FedAvg, equal weights, or
between the two.

Weights are by size to the power a, 1 at first. In the last round of a phase the averages of that
round's updates with a = 0, 0.5 and 1 are compared by their loss on the server's images (`proxy`),
and the best holds for the next phase. A choice in every round would follow the noise of a round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import (
    Cohort,
    Method,
    Model,
    Needs,
    State,
    Weighted,
    Weighting,
    Weights,
    weighted_sum,
)
from feddraw.core.schedules import Floats, size_prior
from feddraw.errors import at_least

POWERS = (1.0, 0.5, 0.0)  # of equal losses the first is taken


def shares_by_power(sizes: Floats, power: float) -> Floats:
    """n to a power, normalised; the largest size is 1 before, so that no power overflows."""
    return size_prior((sizes / sizes.max()) ** power)


@dataclass(frozen=True)
class ChosenPower(Weighting):
    phase: int = 4

    needs = Needs(
        sizes=True,
        layers="all",
        server_images=True,
        cost="three passes over the server's images in the last round of a phase",
    )

    def init(self) -> State:
        return {"power": 1.0}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        weights = Weights(
            shares_by_power(cohort.sizes, state["power"]), {"prior": size_prior(cohort.sizes)}
        )
        if (cohort.round + 1) % self.phase == 0 and cohort.round + 1 < cohort.rounds:
            state = {"power": min(POWERS, key=lambda power: _validation_loss(cohort, power))}
        return weights, state


def _validation_loss(cohort: Cohort, power: float) -> float:
    assert cohort.proxy is not None
    values = shares_by_power(cohort.sizes, power)
    counters = np.max([update.model.counters for update in cohort.updates], axis=0)
    buffers = weighted_sum(values, cohort.buffers)
    return cohort.proxy.loss(Model(cohort.averaged(values), buffers, counters, cohort.sent.layout))


def power_by_validation(phase: int = 4) -> Method:
    """Size to a power that the server's images choose, phase by phase."""
    return Method(Weighted(ChosenPower(at_least("phase", phase, 1))))

"""A weighting rule of one's own: a client counts less the farther its model is from the mean.

From the folder that holds this file:

python own_method.py                                         # as a script
feddraw run --method own_method:closer_counts_more
feddraw run --method own_method:closer_counts_more+fedprox   # with FedProx's local training
"""

from dataclasses import dataclass

import numpy as np

from feddraw import Experiment, iterate
from feddraw.core import Cohort, Method, Needs, State, Weighted, Weighting, Weights, normalize


@dataclass(frozen=True)
class CloserCountsMore(Weighting):
    softening: float = 1e-5

    needs = Needs(layers="all")

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        distances = np.abs(cohort.params - cohort.params.mean(axis=0)).sum(axis=1)
        return normalize(1 / (distances + self.softening)), state


def closer_counts_more(softening: float = 1e-5) -> Method:
    """Weights fall with the distance to the mean model."""
    return Method(Weighted(CloserCountsMore(softening)))


if __name__ == "__main__":
    small = {
        "scenario.scale": 0.005,
        "rounds": 2,
        "data.size": 28,
        "data.validation": 200,
        "data.test": 200,
    }
    for result in iterate(
        Experiment(method="own_method:closer_counts_more", engine="serial").with_settings(small)
    ):
        shares = ", ".join(f"{client} {weight:.3f}" for client, weight in result.weights.items())
        print(
            f"round {result.round}: {shares}, validation AUC"
            f" {result.metrics.validation.auc.macro:.3f}"
        )

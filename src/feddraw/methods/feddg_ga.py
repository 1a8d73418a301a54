"""FedDG-GA: weights rise where the common model does worse than the client's own. (Zhang et al.,
CVPR 2023)

A client's gap is the loss of the model that it is sent next, less that of the model which it had
trained itself, both on its own images. From equal weights on, before round t = 1, 2, …, T - 1

  a <- a + step (1 - (t - 2) / T) / K · gap / max |gap|,

clipped to [0, 1] and normalised: the authors' code, whose 1/3 is 1/K with its three clients. Their
gaps are on validation images of each client; ours are on its training images.

The paper has everybody in every round. Here a covers all clients from the first round on, present
or not, as in AFL: a client that joins later starts at 1/K. A gap is between the client's last
update that counted and the model that it is sent when it comes again; a client without a gap keeps
its a but for the normalising.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import (
    LOSS,
    TRAINED_LOSS,
    Cohort,
    Column,
    Method,
    Needs,
    State,
    Weighted,
    Weighting,
    Weights,
    normalize,
    of_present,
    with_present,
)
from feddraw.errors import positive
from feddraw.methods.afl import shares_of_all


@dataclass(frozen=True)
class GapWeighting(Weighting):
    step: float = 0.2

    needs = Needs(asks=(LOSS, TRAINED_LOSS))

    def init(self) -> State:
        return {"share": {}, "trained": {}}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        present = list(cohort.clients)
        gap = cohort.number("loss") - of_present(state["trained"], cohort)
        shares = shares_of_all(state["share"], cohort.population)
        shares[present] += self._step_size(cohort) * normalised_gaps(gap)
        shares = np.clip(shares, 0.0, 1.0)
        shares = normalize(shares if shares.any() else np.ones(len(shares))).values
        now = shares[present]
        own_losses = cohort.number("trained loss").tolist()
        state = {
            "share": {str(client): share for client, share in enumerate(shares.tolist())},
            "trained": with_present(state["trained"], cohort, own_losses),
        }
        weights = normalize(now if now.any() else np.ones(len(now)), reputation=gap)
        return weights, state

    def _step_size(self, cohort: Cohort) -> float:
        return self.step * (1 - (cohort.round - 2) / cohort.rounds) / cohort.population


def normalised_gaps(gap: Column) -> Column:
    """Gaps as shares of the largest; 0 where a client has none, and where all are zero."""
    gap = np.nan_to_num(gap)
    largest = np.abs(gap).max()
    return np.asarray(gap / largest) if largest else gap


def feddg_ga(step: float = 0.2) -> Method:
    """Weights rise with the gap between common and own model."""
    return Method(Weighted(GapWeighting(positive("step", step))))

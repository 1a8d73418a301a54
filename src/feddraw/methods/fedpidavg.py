"""FedPIDAvg: size, how far a client's loss has fallen, and how high it was. (Mächler et al., FeTS
2022)

w = (1 - drop - past) p + drop k / sum(k) + past m / sum(m), where c is the loss of a client's
trained model on its own images, k = c_before - c, and m the sum of its last six c. With `past = 0`
and `change = "ratio"`, k = c_before / c, it is FedCostWAvg (FeTS 2021), whose `drop` is 0.5. The
paper also gives large clients fewer steps, which is not part of the weights.

A loss that has risen counts as one that has not fallen: the published share would be negative. In
the first round, and where nobody's loss has fallen, the share of the drop goes to size. The paper
has everybody in every round. Here "before" is the client's last update that counted, m is the mean
of its last six, and a client without a loss before has the mean drop of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from feddraw.core import (
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
    with_present,
)
from feddraw.core.schedules import Floats, size_prior
from feddraw.errors import UserError, not_negative, one_of

Change = Literal["difference", "ratio"]

REMEMBERED = 6  # losses of each client, with the present one
SMALLEST_LOSS = 1e-12  # of a divisor


@dataclass(frozen=True)
class PidWeighting(Weighting):
    drop: float = 0.45
    past: float = 0.1
    change: Change = "difference"

    needs = Needs(sizes=True, asks=(TRAINED_LOSS,))

    def init(self) -> State:
        return {"losses": {}}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        prior = size_prior(cohort.sizes)
        loss = cohort.number("trained loss")
        known = [np.asarray(state["losses"].get(str(client), ())) for client in cohort.clients]
        before = np.array([losses[-1] if len(losses) else np.nan for losses in known])
        latest = [
            np.append(losses, now)[-REMEMBERED:] for losses, now in zip(known, loss, strict=True)
        ]
        fallen = shares_or(prior, self._fallen(before, loss))
        high = shares_or(prior, np.array([losses.mean() for losses in latest]))
        size = max(0.0, 1 - self.drop - self.past)
        values = size * prior + self.drop * fallen + self.past * high
        state = {"losses": with_present(state["losses"], cohort, latest)}
        # once more shares: one client alone counts 1 to the last digit
        return normalize(values, prior=prior, reputation=fallen), state

    def _fallen(self, before: Column, now: Column) -> Column:
        """How far each loss has fallen; the mean of the others where none is known before."""
        if np.isnan(before).all():
            return np.zeros(len(now))
        if self.change == "ratio":
            fallen = before / np.maximum(now, SMALLEST_LOSS)
        else:
            fallen = np.maximum(0.0, before - now)
        return np.where(np.isnan(fallen), np.nanmean(fallen), fallen)


def shares_or(otherwise: Floats, amounts: Floats) -> Floats:
    """Amounts as shares of their sum; other shares where there is nothing to share."""
    total = amounts.sum()
    return np.asarray(amounts / total) if total > 0 else otherwise


def fedpidavg(drop: float = 0.45, past: float = 0.1, change: Change = "difference") -> Method:
    """Size, the drop of the loss, and its past."""
    not_negative("drop", drop)
    not_negative("past", past)
    if drop + past > 1:
        raise UserError(f"drop + past is {drop + past:g}: the shares of both are at most 1")
    one_of("change", change, get_args(Change))
    return Method(Weighted(PidWeighting(drop, past, change)))

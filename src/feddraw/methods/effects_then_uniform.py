"""Random effects early, equal weights late: rho is from the first rounds; FedDRAW's beta makes
weights equal.

rho is the mean of what `random_effects` measures before round `until`; afterwards nothing is
measured. The weights are beta_t / beta_max times those of random effects, the rest equal, with
FedDRAW's beta_t: 1 in round 0, 0 in the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from feddraw.core import (
    TWO_SUMS,
    Cohort,
    Facts,
    Local,
    Measurement,
    Method,
    Parts,
    Server,
    State,
    Vector,
    Weights,
)
from feddraw.core.schedules import LAM, Floats, beta
from feddraw.errors import at_least, positive
from feddraw.methods.random_effects import RandomEffects, weights_by_rho

NEVER = 1 << 20  # rounds between measurements: only round 0 is a multiple of it


@dataclass(frozen=True)
class EffectsThenUniform(RandomEffects):
    until: int = 3
    lam: float = LAM

    secure = TWO_SUMS

    def init(self) -> State:
        return {"rho": 0.0, "measured": 0}

    def broadcast(self, state: State) -> dict[str, Vector]:
        every = NEVER if state["measured"] >= self.until else 1
        return replace(self.measurement, every=every).as_broadcast()

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        found, _ = super().weigh(cohort, {})
        state, part = (
            self._with_rho_measured(found.parts["rho"], state),
            self._effects_share(cohort),
        )
        values = part * weights_by_rho(cohort.sizes, state["rho"]) + (1 - part) / len(
            cohort.updates
        )
        return Weights(values, {**found.parts, "rho": state["rho"], "beta": part}), state

    def inform(
        self, total: Floats, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Floats, Parts, State]:
        _, parts, _ = super().inform(total, facts, places, {})
        state = self._with_rho_measured(parts["rho"], state)
        return (
            np.array([state["rho"]]),
            {**parts, "rho": state["rho"], "beta": self._effects_share(facts)},
            state,
        )

    def own_limits(self, facts: Facts, place: int) -> tuple[float, float]:
        part = self._effects_share(facts)
        values = part * weights_by_rho(facts.sizes, float(facts.told[0])) + (1 - part) / len(
            facts.sizes
        )
        return float(values[place] / values.max()), float(values[place] / values.max())

    def _effects_share(self, at: Cohort | Facts) -> float:
        """How much of the weights is that of random effects."""
        part = beta(at.round, at.rounds, lam=self.lam, beta_max=1.0)
        return 1.0 if part is None else part

    def _with_rho_measured(self, now: object, state: State) -> State:
        """With one more measurement, before round `until`."""
        count = state["measured"]
        if not (isinstance(now, float) and count < self.until):
            return state
        return {"rho": (state["rho"] * count + now) / (count + 1), "measured": count + 1}


def effects_then_uniform(
    until: int = 3, lam: float = LAM, batches: int = 16, batch_size: int = 16
) -> Method:
    """As random_effects in the first rounds, then equal weights."""
    measurement = Measurement(
        at_least("batches", batches, 2), at_least("batch_size", batch_size, 2)
    )
    rule = EffectsThenUniform(
        measurement, until=at_least("until", until, 1), lam=positive("lam", lam)
    )
    return Method(Local(), rule, Server())

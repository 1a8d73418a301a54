"""Random effects early, equal weights late: rho is from the first rounds; FedDRAW's beta makes
weights equal.

rho is the mean of what `random_effects` measures before round `until`; afterwards nothing is
measured. The weights are beta_t / beta_max times those of random effects, the rest equal, with
FedDRAW's beta_t: 1 in round 0, 0 in the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from feddraw.core import (
    AfterFirstSum,
    ClientView,
    Column,
    Facts,
    Layout,
    Measurement,
    Method,
    Needs,
    Parts,
    Score,
    State,
    Vector,
    Weighted,
)
from feddraw.core.schedules import LAM, beta
from feddraw.errors import at_least, positive
from feddraw.methods.random_effects import RandomEffects, weights_by_rho

NEVER = 1 << 20  # rounds between measurements: only round 0 is a multiple of it


@dataclass(frozen=True)
class EffectsThenUniform(AfterFirstSum):
    measurement: Measurement = field(default_factory=Measurement)
    until: int = 3
    lam: float = LAM

    contributes = "gradients"

    @property
    def needs(self) -> Needs:
        return self._effects.needs

    @property
    def _effects(self) -> RandomEffects:
        return RandomEffects(self.measurement)

    def check(self, layout: Layout) -> None:
        self._effects.check(layout)

    def init(self) -> State:
        return {"rho": 0.0, "measured": 0}

    def broadcast(self, state: State) -> dict[str, Vector]:
        every = NEVER if state["measured"] >= self.until else 1
        return replace(self.measurement, every=every).as_broadcast()

    def contribute(self, client: ClientView, facts: Facts, place: int) -> Column:
        return self._effects.contribute(client, facts, place)

    def conclude(
        self, total: Column, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Column, Parts, State]:
        _, parts, _ = self._effects.conclude(total, facts, places, {})
        state = self._with_measured(parts["rho"], state)
        shown = {**parts, "rho": state["rho"], "beta": self._effects_share(facts)}
        return np.array([state["rho"]]), shown, state

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        return self._log_weight(facts, place), {"prior": float(facts.priors[place])}

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        log_weight = self._log_weight(facts, place)
        return log_weight, log_weight

    def _log_weight(self, facts: Facts, place: int) -> float:
        share = self._effects_share(facts)
        by_effects = weights_by_rho(facts.sizes, float(facts.told[0]))
        return math.log(share * by_effects[place] + (1 - share) / len(facts.sizes))

    def _effects_share(self, facts: Facts) -> float:
        """How much of the weights is that of random effects."""
        share = beta(facts.round, facts.rounds, lam=self.lam, beta_max=1.0)
        return 1.0 if share is None else share

    def _with_measured(self, rho: object, state: State) -> State:
        """With one more measurement, before round `until`."""
        count = state["measured"]
        if not (isinstance(rho, float) and count < self.until):
            return state
        return {"rho": (state["rho"] * count + rho) / (count + 1), "measured": count + 1}


def effects_then_uniform(
    until: int = 3, lam: float = LAM, batches: int = 16, batch_size: int = 16
) -> Method:
    """As random_effects in the first rounds, then equal weights."""
    measurement = Measurement(
        at_least("batches", batches, 2), at_least("batch_size", batch_size, 2)
    )
    rule = EffectsThenUniform(measurement, at_least("until", until, 1), positive("lam", lam))
    return Method(Weighted(rule))

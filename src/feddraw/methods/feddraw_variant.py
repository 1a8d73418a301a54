"""FedDRAW with a part changed: the ablations that its paper lacks, and two repairs. See
docs/extensions.md.

`inner` fixes what reputation is made of, `outer` takes the end of the annealing away, `clock =
"fraction"` runs both schedules over the share of rounds done, and `signal` compares moves, or
models after equally many steps. Three more signals are controls of what similarity is good for: the
same for all clients, that of another client drawn anew in every round, and similarities as
distances from their mean in standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from feddraw.core import (
    TWO_SUMS,
    Cohort,
    Column,
    Facts,
    Local,
    Method,
    Parts,
    Server,
    State,
    not_secure,
)
from feddraw.core.schedules import BETA_MAX, ETA, LAM, ROUNDS, Reading
from feddraw.errors import one_of
from feddraw.methods.feddraw import DualReputationAnnealing, cosine_of_learnt

Inner = Literal["annealed", "size", "similarity", "half"]
Outer = Literal["annealed", "constant"]
Clock = Literal["rounds", "fraction"]
Signal = Literal["model", "move", "per_step", "constant", "shuffled", "standardised"]


@dataclass(frozen=True)
class AnnealingVariant(DualReputationAnnealing):
    inner: Inner = "annealed"
    outer: Outer = "annealed"
    clock: Clock = "rounds"
    signal: Signal = "model"

    needs = "sizes, classifier"
    streams = False

    def schedule(self, round: float, rounds: int) -> tuple[float, float | None]:
        if self.clock == "fraction":
            # the share of training done, as a round of the paper's T, which its settings refer to
            round, rounds = (ROUNDS - 1) * round / max(1, rounds - 1), ROUNDS
        gamma, beta = super().schedule(round, rounds)
        fixed = {"annealed": gamma, "size": 1.0, "similarity": 0.0, "half": 0.5}
        return fixed[
            self.inner
        ], beta if beta is None or self.outer == "annealed" else self.beta_max

    def similarity(self, cohort: Cohort) -> NDArray[np.float64]:
        if self.signal == "constant":
            return np.ones(len(cohort.updates))
        if self.signal in ("model", "shuffled", "standardised"):
            return self._rearranged(super().similarity(cohort), cohort.round)
        if self.signal == "per_step":
            return self._paced_similarity(cohort, cohort.steps.mean())
        layer = cohort.model.layout.find(self.layer, self.part)
        moves = cohort.piece(self.layer, self.part).astype(np.float64) - cohort.model.params[layer]
        learnt = cohort.learnt(layer)
        together = moves.mean(axis=0) if learnt is None else _mean_of_learnt_moves(moves, learnt)
        return cosine_of_learnt(cohort, layer, moves, together)

    def _paced_similarity(self, cohort: Cohort, mean_steps: float) -> NDArray[np.float64]:
        """With every move as long as after the mean number of steps."""
        layer = cohort.model.layout.find(self.layer, self.part)
        sent = cohort.model.params[layer]
        moves = cohort.piece(self.layer, self.part).astype(np.float64) - sent
        return cosine_of_learnt(
            cohort, layer, sent + (mean_steps / cohort.steps)[:, None] * moves, sent
        )

    def _rearranged(self, similarity: NDArray[np.float64], round: int) -> NDArray[np.float64]:
        if self.signal == "shuffled":
            return np.random.default_rng([round, len(similarity)]).permutation(similarity)
        if self.signal == "standardised":
            spread = similarity.std()
            return (
                (similarity - similarity.mean()) / spread
                if spread > 1e-12
                else np.zeros_like(similarity)
            )
        return similarity


@dataclass(frozen=True)
class RearrangedVariant(AnnealingVariant):
    """The controls that put clients' similarities beside one another."""

    secure = not_secure("a client's score follows from the other clients' similarities")


@dataclass(frozen=True)
class MeanMoveVariant(AnnealingVariant):
    """The signal that compares a client's move with the mean one."""

    secure = not_secure(
        "a sum of moves beside the weighted one can leave a single client's as their difference"
    )


@dataclass(frozen=True)
class PacedVariant(AnnealingVariant):
    """The signal that needs the mean number of steps."""

    needs = "sizes, classifier, steps"
    secure = TWO_SUMS

    def first_sum(self, cohort: Cohort, facts: Facts, place: int) -> Column:
        return cohort.steps

    def inform(
        self, total: Column, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Column, Parts, State]:
        return total / len(places), {}, state

    def own_weight(self, cohort: Cohort, facts: Facts, place: int) -> float:
        similarity = float(self._paced_similarity(cohort, facts.told[0])[0])
        score, _ = self.scored(float(facts.priors[place]), similarity, facts.round, facts.rounds)
        return math.exp(score - self.scores(facts)[1])


def _mean_of_learnt_moves(
    moves: NDArray[np.float64], learnt: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The mean move of each parameter, over the clients that have learnt it."""
    return np.asarray(np.where(learnt, moves, 0).sum(axis=0) / np.maximum(learnt.sum(axis=0), 1))


def feddraw_variant(
    inner: Inner = "annealed",
    outer: Outer = "annealed",
    clock: Clock = "rounds",
    signal: Signal = "model",
    eta: float = ETA,
    lam: float = LAM,
    beta_max: float = BETA_MAX,
    reading: Reading = "reported",
) -> Method:
    """FedDRAW with a part changed: ablations and repairs."""
    parts: dict[str, Any] = {"inner": inner, "outer": outer, "clock": clock, "signal": signal}
    for (name, value), kind in zip(parts.items(), (Inner, Outer, Clock, Signal), strict=True):
        one_of(name, value, get_args(kind))
    rearranged = dict.fromkeys(("shuffled", "standardised"), RearrangedVariant)
    rules = {"move": MeanMoveVariant, "per_step": PacedVariant, **rearranged}
    return Method(
        Local(), rules.get(signal, AnnealingVariant)(eta, lam, beta_max, reading, **parts), Server()
    )

"""FedDRAW with a part changed: the ablations that its paper lacks, and two repairs. See
docs/extensions.md.

`inner` fixes what reputation is made of, `outer` takes the end of the annealing away, `clock =
"fraction"` runs both schedules over the share of rounds done, and `signal` compares moves, or
models after equally many steps. Three more signals are controls of what similarity is good for: the
same for all clients, that of another client drawn anew in every round, and similarities as
distances from their mean in standard deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from feddraw.core import (
    AfterFirstSum,
    ClientView,
    Cohort,
    Column,
    Facts,
    Layout,
    Method,
    Needs,
    Parts,
    Score,
    SelfScored,
    State,
    Weighted,
    Weighting,
    Weights,
)
from feddraw.core.schedules import (
    BETA_MAX,
    ETA,
    LAM,
    ROUNDS,
    Annealing,
    Reading,
    weights_and_parts,
)
from feddraw.errors import one_of
from feddraw.methods.feddraw import (
    NEEDS,
    masked_cosine,
    parts_of_weights,
    score_of,
    score_range_of,
    similarity_to_sent,
)

Inner = Literal["annealed", "size", "similarity", "half"]
Outer = Literal["annealed", "constant"]
Clock = Literal["rounds", "fraction"]
Signal = Literal["model", "move", "per_step", "constant", "shuffled", "standardised"]


@dataclass(frozen=True)
class ChangedAnnealing(Annealing):
    """FedDRAW's schedules with a part fixed, or run over the share of rounds done."""

    inner: Inner = "annealed"
    outer: Outer = "annealed"
    clock: Clock = "rounds"

    def at(self, round: float, rounds: int) -> tuple[float, float | None]:
        if self.clock == "fraction":
            # The share of training done, as a round of the paper's T, which its settings refer to.
            round = (ROUNDS - 1) * round / max(1, rounds - 1)
            rounds = ROUNDS
        gamma, beta = super().at(round, rounds)
        fixed = {"annealed": gamma, "size": 1.0, "similarity": 0.0, "half": 0.5}
        if beta is not None and self.outer == "constant":
            beta = self.beta_max
        return fixed[self.inner], beta


@dataclass(frozen=True)
class OwnSignal(SelfScored):
    """The signals that a client knows itself: its model's similarity, or the same for all."""

    annealing: ChangedAnnealing = field(default_factory=ChangedAnnealing)
    constant: bool = False

    needs = NEEDS

    def check(self, layout: Layout) -> None:
        layout.find("classifier")

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        similarity = 1.0 if self.constant else similarity_to_sent(client, "classifier", "both")
        return score_of(similarity, self.annealing, facts, place)

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        return score_range_of(self.annealing, facts, place)

    def parts_of(self, own_weights: Column, facts: Facts, places: Sequence[int]) -> Parts:
        return parts_of_weights(own_weights, self.reference(facts), self.annealing, facts, places)


@dataclass(frozen=True)
class PacedSignal(AfterFirstSum):
    """The signal `per_step`: every move is as long as after the mean number of steps."""

    annealing: ChangedAnnealing = field(default_factory=ChangedAnnealing)

    needs = Needs(sizes=True, layers="classifier", steps=True, cost=NEEDS.cost)

    def check(self, layout: Layout) -> None:
        layout.find("classifier")

    def contribute(self, client: ClientView, facts: Facts, place: int) -> Column:
        return np.array([float(client.update.known_steps)])

    def conclude(
        self, total: Column, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Column, Parts, State]:
        mean_steps = total / len(places)
        return mean_steps, {}, state

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        where = client.sent.layout.find("classifier")
        sent = client.sent.params[where]
        move = client.update.model.params[where].astype(np.float64) - sent
        pace = float(facts.concluded[0]) / client.update.known_steps
        similarity = masked_cosine(sent + pace * move, sent, client.learnt(where))
        return score_of(similarity, self.annealing, facts, place)

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        return score_range_of(self.annealing, facts, place)

    def parts_of(self, own_weights: Column, facts: Facts, places: Sequence[int]) -> Parts:
        return parts_of_weights(own_weights, self.reference(facts), self.annealing, facts, places)


@dataclass(frozen=True)
class ComparedSignal(Weighting):
    """The signals that put clients beside one another: the mean move, and two controls."""

    annealing: ChangedAnnealing = field(default_factory=ChangedAnnealing)
    signal: Signal = "move"

    needs = NEEDS

    def check(self, layout: Layout) -> None:
        layout.find("classifier")

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        gamma, beta = self.annealing.at(cohort.round, cohort.rounds)
        result = weights_and_parts(cohort.sizes, self._similarity(cohort), gamma, beta)
        return Weights(result.weight, result.parts), state

    def _similarity(self, cohort: Cohort) -> Column:
        if self.signal == "move":
            return _similarity_to_mean_move(cohort)
        views = cohort.views()
        similarity = np.array([similarity_to_sent(view, "classifier", "both") for view in views])
        if self.signal == "shuffled":
            rng = np.random.default_rng([cohort.round, len(similarity)])
            return rng.permutation(similarity)
        spread = similarity.std()
        if spread <= 1e-12:
            return np.zeros_like(similarity)
        return np.asarray((similarity - similarity.mean()) / spread)


def _similarity_to_mean_move(cohort: Cohort) -> Column:
    """Each client's move of the classifier beside the mean one, over those who have learnt it."""
    where = cohort.sent.layout.find("classifier")
    moves = cohort.layer("classifier").astype(np.float64) - cohort.sent.params[where]
    learnt = cohort.learnt(where)
    if learnt is None:
        mean_move = moves.mean(axis=0)
        return np.array([masked_cosine(move, mean_move, None) for move in moves])
    mean_move = np.where(learnt, moves, 0).sum(axis=0) / np.maximum(learnt.sum(axis=0), 1)
    pairs = zip(moves, learnt, strict=True)
    return np.array([masked_cosine(move, mean_move, mask) for move, mask in pairs])


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
    one_of("inner", inner, get_args(Inner))
    one_of("outer", outer, get_args(Outer))
    one_of("clock", clock, get_args(Clock))
    one_of("signal", signal, get_args(Signal))
    annealing = ChangedAnnealing(eta, lam, beta_max, reading, inner, outer, clock)
    if signal in ("model", "constant"):
        return Method(Weighted(OwnSignal(annealing, constant=signal == "constant")))
    if signal == "per_step":
        return Method(Weighted(PacedSignal(annealing)))
    return Method(Weighted(ComparedSignal(annealing, signal)))

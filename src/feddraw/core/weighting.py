"""How much each client counts: what a weighting is, and the kinds that need less than all updates.

`Weighting` sees all updates of a round. `SelfScored` is the kind whose clients can each be weighed
alone: the weight is exp(score) over the sum of all, so updates can be added up as they come and
under masks. `ScoredByOutput` has weights of its own for each output of the classifier, and
`AfterFirstSum` needs one sum of numbers over the clients before they can be scored. The kind of a
rule, not a flag, says what it can do (`capabilities`). Rules are frozen dataclasses and pure: state
goes in as an argument and comes out as a result. numpy only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from feddraw.core.cohort import (
    ClientView,
    Cohort,
    Facts,
    Parts,
    Piece,
    Weights,
    check_part_names,
    columns_of,
    normalize,
    output_name,
)
from feddraw.core.exchange import Extra, Holds, State
from feddraw.core.model import Layout, Vector
from feddraw.core.sums import Column

# The logarithm of a weight, and the parts that explain it.
Score = tuple[float, Mapping[str, float]]
# How much of a client's model a rule looks at, from least to most.
Layers = Literal["none", "classifier", "all"]
LAYERS: tuple[Layers, ...] = get_args(Layers)


@dataclass(frozen=True)
class Needs:
    """What a rule looks at. It is a value, so it may depend on a rule's settings."""

    sizes: bool = False  # how many images each client has
    layers: Layers = "none"  # of the clients' models
    steps: bool = False  # how many optimiser steps each client took
    asks: tuple[Extra, ...] = ()  # what every client must answer
    server_images: bool = False  # labelled images at the server
    cost: str = "O(K)"  # of weighing K clients with d parameters


class Weighting(ABC):
    """How much each client counts. All that a new rule must write is `weigh`."""

    @property
    def needs(self) -> Needs:
        """What the rule looks at; a class attribute where it does not depend on settings."""
        return Needs(sizes=True)

    def check(self, layout: Layout) -> None:
        """Refuse a network that does not fit the rule."""

    def init(self) -> State:
        """The rule's state before the first round."""
        return {}

    def broadcast(self, state: State) -> dict[str, Vector]:
        """Vectors that every client gets beside the model."""
        return {}

    @abstractmethod
    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        """Weights that sum to one, and the state for the next round."""


class Selection(Weighting):
    """A weighting that leaves clients out on purpose; those selected count the same."""

    @abstractmethod
    def select(self, cohort: Cohort) -> NDArray[np.bool_]:
        """(clients,): who is selected, at least one."""

    @final
    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        """Equal weights for those selected, none for the others."""
        return normalize(self.select(cohort).astype(np.float64)), state


class SelfScored(Weighting):
    """A client's weight is exp(score) / sum, and its score follows from itself and the facts."""

    # What can be computed from a client's weight and must stay hidden under secure sums, where each
    # client says its own weight in clear.
    reveals: str = ""

    @abstractmethod
    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        """The logarithm of a client's weight, up to a constant that all share, and its parts.

        `place` is the client's index in the facts. A client that does not count scores -inf.
        """

    @abstractmethod
    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        """The lowest and highest score that a client can have, whatever it has trained."""

    def reference(self, facts: Facts) -> float:
        """The score that stands for the weight one where clients weigh themselves under masks."""
        return max(self.score_range(facts, place)[1] for place in range(len(facts.sizes)))

    def parts_of(self, own_weights: Column, facts: Facts, places: Sequence[int]) -> Parts:
        """What a server can say about weights that clients at these places gave themselves."""
        return {}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        """The same formula for all clients at once. A rule may add parts, never change weights."""
        return self._weigh_by_scores(cohort, cohort.facts()), state

    def _weigh_by_scores(self, cohort: Cohort, facts: Facts) -> Weights:
        scores = []
        parts = []
        for place, view in enumerate(cohort.views()):
            score, explained = self.score(view, facts, place)
            scores.append(score)
            parts.append(explained)
        return Weights(shares_of_scores(np.array(scores), facts.sizes), columns_of(parts))


class ScoredByOutput(SelfScored):
    """Each output of the classifier has weights of its own, among the clients that label it."""

    @abstractmethod
    def score_output(self, client: ClientView, output: int, facts: Facts, place: int) -> Score:
        """A client's score for one output; the facts are of the clients that label its finding."""

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        facts = cohort.facts()
        whole = self._weigh_by_scores(cohort, facts)
        outputs = range(cohort.sent.layout.outputs)
        pieces = [self._piece(cohort, facts, output) for output in outputs]
        return replace(whole, pieces=pieces), state

    def _piece(self, cohort: Cohort, facts: Facts, output: int) -> Piece:
        spans = cohort.sent.layout.rows_of(output)
        clients = len(cohort.updates)
        values = np.zeros(clients)
        parts: dict[str, Column] = {}
        scored: list[int] = []
        scores: list[float] = []
        for place, view in enumerate(cohort.views()):
            among, mine = facts.labelling(output, place)
            if mine is None:
                continue
            score, explained = self.score_output(view, output, among, mine)
            scored.append(place)
            scores.append(score)
            for name, part in explained.items():
                parts.setdefault(name, np.full(clients, np.nan))[place] = part
        if scored:
            values[scored] = shares_of_scores(np.array(scores), facts.sizes[scored])
        return Piece(output_name(output), spans, values, parts)


class AfterFirstSum(SelfScored):
    """A score that needs one sum over the clients first: under masks, two sums in a round."""

    contributes: Holds = "numbers"  # what the first sum holds of each client

    @abstractmethod
    def contribute(self, client: ClientView, facts: Facts, place: int) -> Column:
        """What a client adds to the first sum: a few numbers, or a vector (see `contributes`)."""

    @abstractmethod
    def conclude(
        self, total: Column, facts: Facts, places: Sequence[int], state: State
    ) -> tuple[Column, Parts, State]:
        """From the sum over the clients at some places: what follows from it, and all are told
        (`Facts.concluded`), parts for the ledger, and the next state.
        """

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        facts = cohort.facts()
        places = range(len(cohort.updates))
        views = cohort.views()
        contributions = [self.contribute(views[place], facts, place) for place in places]
        total = np.sum(contributions, axis=0)
        concluded, common, state = self.conclude(total, facts, places, state)
        weights = self._weigh_by_scores(cohort, replace(facts, concluded=concluded))
        return replace(weights, parts={**weights.parts, **common}), state


def shares_of_scores(scores: Column, sizes: Column) -> Column:
    """exp(score), normalised. Where nobody counts at all, the sizes decide."""
    top = scores.max()
    if top == -math.inf:
        return np.asarray(sizes / sizes.sum())
    unscaled = np.exp(scores - top)
    return np.asarray(unscaled / unscaled.sum())


def own_weight(rule: SelfScored, client: ClientView, facts: Facts, place: int) -> float:
    """How much a client counts, up to a factor that all share, by what it knows itself."""
    score, parts = rule.score(client, facts, place)
    check_part_names(parts)  # they stay with the client: no ledger would refuse them
    return math.exp(score - rule.reference(facts))


def own_weight_range(rule: SelfScored, facts: Facts, place: int) -> tuple[float, float]:
    """Between which numbers `own_weight` of a client lies: more it cannot claim."""
    low, high = rule.score_range(facts, place)
    reference = rule.reference(facts)
    return math.exp(low - reference), math.exp(high - reference)


def own_output_weight(
    rule: ScoredByOutput, client: ClientView, output: int, facts: Facts, place: int
) -> float:
    """The same for one output of the classifier; zero for a client that does not label it."""
    among, mine = facts.labelling(output, place)
    if mine is None:
        return 0.0
    score, _ = rule.score_output(client, output, among, mine)
    return math.exp(score - rule.reference(among))


@dataclass(frozen=True)
class BySize(SelfScored):
    """Each client counts by its images: the plain weighting."""

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        return math.log(facts.sizes[place]), {"prior": float(facts.priors[place])}

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        score = math.log(facts.sizes[place])
        return score, score

    def parts_of(self, own_weights: Column, facts: Facts, places: Sequence[int]) -> Parts:
        return {"prior": facts.priors[list(places)]}


@dataclass(frozen=True)
class Equal(SelfScored):
    """Every client counts the same: the other plain weighting."""

    needs = Needs()

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        return 0.0, {}

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        return 0.0, 0.0

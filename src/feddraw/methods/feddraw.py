"""FedDRAW: from size to similarity of the classifier to equal weights. (Moradpour and Hauschild)

The paper's algorithm, equation and figures differ in the first round and in beta's index; the
default reading, `reported`, fits 11 of the 12 statements about weights that it prints
(`feddraw paper`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from feddraw.core import (
    ClientView,
    Column,
    Facts,
    LayerPart,
    Layout,
    Method,
    Needs,
    Parts,
    Score,
    SelfScored,
    Vector,
    Weighted,
)
from feddraw.core.schedules import (
    BETA_MAX,
    ETA,
    LAM,
    Annealing,
    Reading,
    cosine,
    reputation,
)
from feddraw.errors import one_of

NEEDS = Needs(sizes=True, layers="classifier", cost="O(K d) of one layer")


@dataclass(frozen=True)
class DualReputationAnnealing(SelfScored):
    annealing: Annealing = field(default_factory=Annealing)
    layer: str = "classifier"
    part: LayerPart = "both"

    needs = NEEDS

    def check(self, layout: Layout) -> None:
        layout.find(self.layer, self.part)

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        similarity = similarity_to_sent(client, self.layer, self.part)
        return score_of(similarity, self.annealing, facts, place)

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        return score_range_of(self.annealing, facts, place)

    def parts_of(self, own_weights: Column, facts: Facts, places: Sequence[int]) -> Parts:
        return parts_of_weights(own_weights, self.reference(facts), self.annealing, facts, places)


def similarity_to_sent(client: ClientView, layer: str, part: LayerPart) -> float:
    """The cosine of a client's layer to the one that was sent."""
    where = client.sent.layout.find(layer, part)
    return masked_cosine(client.layer(layer, part), client.sent.params[where], client.learnt(where))


def masked_cosine(
    vector: NDArray[np.floating], reference: Vector, learnt: NDArray[np.bool_] | None
) -> float:
    """A cosine without the rows of findings that a client does not label.

    Those rows hardly move, and would make the client look similar.
    """
    if learnt is not None:
        vector = np.where(learnt, vector, 0)
        reference = np.where(learnt, reference, 0)
    return float(cosine(vector[None], reference)[0])


def score_of(similarity: float, annealing: Annealing, facts: Facts, place: int) -> Score:
    """beta · xi, or the logarithm of the prior in a round that takes the prior as it is."""
    gamma, beta = annealing.at(facts.round, facts.rounds)
    prior = float(facts.priors[place])
    xi = reputation(prior, similarity, gamma)
    parts = {"prior": prior, "similarity": similarity, "gamma": gamma, "reputation": xi}
    if beta is None:
        return math.log(prior), parts
    return beta * xi, parts | {"beta": beta}


def score_range_of(annealing: Annealing, facts: Facts, place: int) -> tuple[float, float]:
    """From a classifier that is turned round to one that is fully similar."""
    low, _ = score_of(-1.0, annealing, facts, place)
    high, _ = score_of(1.0, annealing, facts, place)
    return low, high


def parts_of_weights(
    own_weights: Column, reference: float, annealing: Annealing, facts: Facts, places: Sequence[int]
) -> Parts:
    """Reputation and similarity as they follow from weights, in rounds that depend on them."""
    gamma, beta = annealing.at(facts.round, facts.rounds)
    prior = facts.priors[list(places)]
    parts: dict[str, NDArray[np.float64] | float | None] = {
        "prior": prior,
        "gamma": gamma,
        "beta": beta,
    }
    if beta:
        xi = (np.log(own_weights) + reference) / beta
        parts["reputation"] = xi
        if gamma < 1:
            parts["similarity"] = (xi - gamma * prior) / (1 - gamma)
    return parts


def feddraw(
    eta: float = ETA,
    lam: float = LAM,
    beta_max: float = BETA_MAX,
    reading: Reading = "reported",
    layer: str = "classifier",
    part: LayerPart = "both",
) -> Method:
    """Size first, then similarity of the classifier, equal weights at the end."""
    one_of("part", part, get_args(LayerPart))
    annealing = Annealing(eta, lam, beta_max, reading)
    return Method(Weighted(DualReputationAnnealing(annealing, layer, part)))

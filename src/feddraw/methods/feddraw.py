"""FedDRAW: from size to similarity of the classifier to equal weights. (Moradpour and Hauschild)

The paper's algorithm, equation and figures differ in the first round and in beta's index; the
default reading, `reported`, is the one that fits every number it prints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from feddraw.core import (
    ONE_SUM,
    Cohort,
    Column,
    Facts,
    Local,
    Matrix,
    Method,
    Parts,
    Server,
    State,
    Weighting,
    Weights,
    schedules,
)
from feddraw.core.model import LayerPart, Layout, Vector
from feddraw.core.schedules import (
    BETA_MAX,
    ETA,
    LAM,
    Reading,
    cosine,
    reputation,
    weights_and_parts,
)
from feddraw.errors import one_of

Elements = slice | NDArray[np.intp]  # of the vector of parameters


@dataclass(frozen=True)
class DualReputationAnnealing(Weighting):
    eta: float = ETA
    lam: float = LAM
    beta_max: float = BETA_MAX
    reading: Reading = "reported"
    layer: str = "classifier"
    part: LayerPart = "both"

    needs = "sizes, classifier"
    cost = "O(K d) of one layer"
    secure = ONE_SUM
    streams = True

    def __post_init__(self) -> None:
        schedules.check_schedule_settings(
            eta=self.eta, lam=self.lam, beta_max=self.beta_max, reading=self.reading
        )
        one_of("part", self.part, get_args(LayerPart))

    def check(self, layout: Layout) -> None:
        layout.find(self.layer, self.part)

    def similarity(self, cohort: Cohort) -> NDArray[np.float64]:
        """Of each client's layer to the one that was sent."""
        layer = cohort.model.layout.find(self.layer, self.part)
        return cosine_of_learnt(cohort, layer, cohort.params[:, layer], cohort.model.params[layer])

    def schedule(self, round: float, rounds: int) -> tuple[float, float | None]:
        """gamma and beta."""
        return schedules.gamma_and_beta(
            round, rounds, self.eta, self.lam, self.beta_max, self.reading
        )

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        found = weights_and_parts(
            cohort.sizes, self.similarity(cohort), *self.schedule(cohort.round, cohort.rounds)
        )
        return Weights(found.weight, found.parts), state

    def score(self, cohort: Cohort, prior: float) -> tuple[float, Mapping[str, float]]:
        return self.scored(prior, float(self.similarity(cohort)[0]), cohort.round, cohort.rounds)

    def scored(
        self, prior: float, similarity: float, round: int, rounds: int
    ) -> tuple[float, Mapping[str, float]]:
        """A client's score and its parts."""
        gamma, beta = self.schedule(round, rounds)
        xi = reputation(prior, similarity, gamma)
        parts = {"prior": prior, "similarity": similarity, "gamma": gamma, "reputation": xi}
        if beta is None:
            return math.log(prior), parts
        return beta * xi, parts | {"beta": beta}

    def score_range(self, prior: float, facts: Facts) -> tuple[float, float]:
        """Turned round, and fully similar."""
        low, high = (
            self.scored(prior, similarity, facts.round, facts.rounds)[0]
            for similarity in (-1.0, 1.0)
        )
        return low, high

    def parts_of(self, own: Column, facts: Facts, places: Sequence[int]) -> Parts:
        """Reputation and similarity follow from the weight, but in rounds whose weights do not
        depend on them.
        """
        gamma, beta = self.schedule(facts.round, facts.rounds)
        prior = facts.priors[list(places)]
        parts: dict[str, NDArray[np.float64] | float | None] = {
            "prior": prior,
            "gamma": gamma,
            "beta": beta,
        }
        if beta:
            xi = (np.log(own) + self.scores(facts)[1]) / beta
            parts |= {"reputation": xi}
            parts |= {"similarity": (xi - gamma * prior) / (1 - gamma)} if gamma < 1 else {}
        return parts


def cosine_of_learnt(
    cohort: Cohort, layer: Elements, vectors: Matrix, reference: Vector
) -> NDArray[np.float64]:
    """Cosines without the rows of findings that a client does not label: they hardly move, and look
    similar.
    """
    learnt = cohort.learnt(layer)
    if learnt is None:
        return cosine(vectors, reference)
    pairs = zip(vectors, learnt, strict=True)
    own = [
        cosine(np.where(mask, vector, 0)[None], np.where(mask, reference, 0))
        for vector, mask in pairs
    ]
    return np.concatenate(own)


def feddraw(
    eta: float = ETA,
    lam: float = LAM,
    beta_max: float = BETA_MAX,
    reading: Reading = "reported",
    layer: str = "classifier",
    part: LayerPart = "both",
) -> Method:
    """Size first, then similarity of the classifier, equal weights at the end."""
    return Method(
        Local(), DualReputationAnnealing(eta, lam, beta_max, reading, layer, part), Server()
    )

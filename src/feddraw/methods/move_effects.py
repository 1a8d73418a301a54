"""Random effects from moves: how much clients differ is estimated from their classifiers' moves
alone.

A client's move per step m has a mean of its own with variance tau² between clients, and sampling
adds sigma²/n. With N = sum n, the sums over clients Q_n = sum n |m - mean by size|² and Q_1 = sum
|m - plain mean|² have the expectations (K - 1) sigma² + (N - sum n²/N) tau² and (1 - 1/K) sum(1/n)
sigma² + (K - 1) tau². Both are added up over the rounds before `until`, and solved; rho = max(0,
tau²) / sigma² then weighs as in `random_effects`, by 1 / (rho + 1/n). Clients of equal size leave
the two equations alike, and have equal weights for any rho.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from feddraw.core import Cohort, Layout, Method, Needs, State, Weighted, Weighting, Weights, gram
from feddraw.core.schedules import Floats, size_prior
from feddraw.errors import at_least
from feddraw.methods.random_effects import LARGEST_RHO, weights_by_rho

SINGULAR = 1e-6  # of the determinant, as a part of the products that it is the difference of


def variance_equations(sizes: Floats, products: Floats) -> Floats:
    """Two rows (of sigma², of tau², the sum itself) from the scalar products of the clients' moves
    per step.
    """
    clients, total = len(sizes), sizes.sum()
    by_size = sizes @ np.diag(products) - sizes @ products @ sizes / total
    plain = np.trace(products) - products.sum() / clients
    first = [clients - 1, total - sizes @ sizes / total, by_size]
    return np.array([first, [(1 - 1 / clients) * (1 / sizes).sum(), clients - 1, plain]])


def move_effects_rho(system: Floats) -> float:
    """rho; infinite where all that is seen is between clients."""
    (a, b, by_size), (c, d, plain) = system.tolist()
    determinant = a * d - b * c
    if abs(determinant) <= SINGULAR * (a * d + b * c):
        return 0.0
    within, between = (
        (d * by_size - b * plain) / determinant,
        (a * plain - c * by_size) / determinant,
    )
    if between <= 0:
        return 0.0
    return between / within if within > 0 else math.inf


@dataclass(frozen=True)
class EffectsOfMoves(Weighting):
    until: int = 3

    needs = Needs(sizes=True, layers="classifier", steps=True, cost="O(K² d) of one layer")

    def check(self, layout: Layout) -> None:
        layout.find("classifier")

    def init(self) -> State:
        return {"equations": np.zeros((2, 3)), "rounds": 0}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        sizes = cohort.sizes
        if state["rounds"] < self.until and len(sizes) > 1:
            sent = cohort.sent.params[cohort.sent.layout.find("classifier")].astype(np.float64)
            moves = np.asarray(
                (cohort.layer("classifier") - sent) / cohort.steps[:, None]
            )  # of one step
            now = variance_equations(sizes, gram(moves, np.zeros(moves.shape[1])))
            state = {"equations": state["equations"] + now, "rounds": state["rounds"] + 1}
        rho = move_effects_rho(state["equations"])
        return Weights(
            weights_by_rho(sizes, rho), {"prior": size_prior(sizes), "rho": min(rho, LARGEST_RHO)}
        ), state


def move_effects(until: int = 3) -> Method:
    """Between size and equal weights: the more the clients' moves differ, the more equal."""
    return Method(Weighted(EffectsOfMoves(at_least("until", until, 1))))

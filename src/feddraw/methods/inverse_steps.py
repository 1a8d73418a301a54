"""Inverse steps: a client counts less the more it has trained.

A control for rules that reward small moves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from feddraw.core import ClientView, Facts, Method, Needs, Score, SelfScored, Weighted


@dataclass(frozen=True)
class InverseSteps(SelfScored):
    needs = Needs(steps=True)

    def score(self, client: ClientView, facts: Facts, place: int) -> Score:
        return -math.log(client.update.known_steps), {}

    def score_range(self, facts: Facts, place: int) -> tuple[float, float]:
        return -math.inf, 0.0  # the highest is that of one step


def inverse_steps() -> Method:
    """Weights are inverse numbers of steps."""
    return Method(Weighted(InverseSteps()))

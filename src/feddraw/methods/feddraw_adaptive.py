"""FedDRAW with an adaptive gamma: the weight of size decays only while similarities are stable. See
docs/extensions.md.

gamma <- gamma · exp(-eta · rho), where rho in [0, 1] is the correlation over clients between this
round's similarities and the last. A steady signal gives FedDRAW itself; one that is noise leaves
the weights with size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from feddraw.core import Cohort, Local, Method, Server, State, Weights, not_secure
from feddraw.core.schedules import BETA_MAX, ETA, LAM, Reading, weights_and_parts
from feddraw.methods.feddraw import DualReputationAnnealing


def similarity_steadiness(before: list[float], now: list[float]) -> float:
    """Their correlation, zero if negative; one where all clients are alike, as nothing is then to
    be chosen.
    """
    first, second = (
        np.asarray(values) - np.mean(values) if values else np.zeros(0) for values in (before, now)
    )
    length = math.sqrt((first @ first) * (second @ second))
    return float(np.clip(first @ second / length, 0, 1)) if length > 1e-15 else 1.0


@dataclass(frozen=True)
class AdaptiveAnnealing(DualReputationAnnealing):
    streams = False
    secure = not_secure("how far size is trusted follows from every client's similarity")

    def init(self) -> State:
        return {"similarity": {}, "decay": -math.log(self.schedule(0, 1)[0])}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        similarity = self.similarity(cohort)
        now = dict(zip(map(str, cohort.clients), similarity.tolist(), strict=True))
        both = [client for client in now if client in state["similarity"]]
        rho = similarity_steadiness([state["similarity"][c] for c in both], [now[c] for c in both])
        decay = state["decay"] + (self.eta * rho if cohort.round else 0.0)
        _, beta = self.schedule(cohort.round, cohort.rounds)
        found = weights_and_parts(cohort.sizes, similarity, math.exp(-decay), beta)
        return Weights(found.weight, found.parts), {
            "similarity": state["similarity"] | now,
            "decay": decay,
        }


def feddraw_adaptive(
    eta: float = ETA, lam: float = LAM, beta_max: float = BETA_MAX, reading: Reading = "reported"
) -> Method:
    """FedDRAW that trusts similarity as far as it is steady."""
    return Method(Local(), AdaptiveAnnealing(eta, lam, beta_max, reading), Server())

"""FedDRAW: from size to similarity of the classifier to equal weights. (Moradpour and Hauschild)

The paper's algorithm, equation and figures differ in the first round and in beta's index; the default reading,
`reported`, is the one that fits every number it prints.
"""

from __future__ import annotations

from dataclasses import dataclass

from feddraw.core import Cohort, Layout, Local, Method, Part, Server, State, Weighting, Weights
from feddraw.errors import one_of
from feddraw.schedules import BETA_MAX, ETA, LAM, Reading, anatomy, check_settings, cosine


@dataclass(frozen=True)
class DualReputationAnnealing(Weighting):
    eta: float = ETA
    lam: float = LAM
    beta_max: float = BETA_MAX
    reading: Reading = "reported"
    layer: str = "classifier"
    part: Part = "both"

    needs = "sizes, classifier"
    cost = "O(K d) of one layer"

    def check(self, layout: Layout) -> None:
        layout.find(self.layer, self.part)

    def weigh(self, cohort: Cohort, state: State) -> tuple[Weights, State]:
        sent = cohort.model.params[cohort.model.layout.find(self.layer, self.part)]
        similarity = cosine(cohort.piece(self.layer, self.part), sent)
        parts = anatomy(
            cohort.round,
            cohort.rounds,
            cohort.sizes,
            similarity,
            eta=self.eta,
            lam=self.lam,
            beta_max=self.beta_max,
            reading=self.reading,
        )
        return Weights(parts.weight, {k: v for k, v in vars(parts).items() if k != "weight"}), state


def feddraw(
    eta: float = ETA,
    lam: float = LAM,
    beta_max: float = BETA_MAX,
    reading: Reading = "reported",
    layer: str = "classifier",
    part: Part = "both",
) -> Method:
    """Size first, then similarity of the classifier, equal weights at the end."""
    check_settings(eta=eta, lam=lam, beta_max=beta_max, reading=reading)
    one_of("part", part, ("both", "weight", "bias"))
    return Method(Local(), DualReputationAnnealing(eta, lam, beta_max, reading, layer, part), Server())

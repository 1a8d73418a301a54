"""Ditto: beside FedAvg each client trains a model of its own, pulled towards the common one. (Li et
al., ICML 2021)

v <- v - lr (gradient at v + pull · (v - x)), from its last v on, with as many steps, in the same
order, as for the common model; x is the model that was received. Twice the work at the client,
nothing more to send.
"""

from __future__ import annotations

from dataclasses import dataclass

from feddraw.core import (
    BySize,
    Client,
    Correction,
    Job,
    Local,
    Memory,
    Method,
    Model,
    Update,
    Vector,
    Weighted,
)
from feddraw.errors import not_negative


@dataclass(frozen=True)
class DittoClient(Local):
    pull: float = 1.0

    keeps = {"own": "model"}

    def end(
        self, job: Job, update: Update, memory: Memory, client: Client
    ) -> tuple[dict[str, Vector], Memory]:
        personal = self.personal(job.model, memory)
        # pull · (v - x) is a pull to where v begins, and a constant
        correction = Correction(
            linear=self.pull * (personal.params - job.model.params), pull=self.pull
        )
        return {}, {"own": client.trained(personal, correction).joined()}

    def personal(self, shown: Model, memory: Memory) -> Model:
        return shown.with_joined(memory["own"]) if "own" in memory else shown


def ditto(pull: float = 1.0) -> Method:
    """FedAvg, with a model of its own for each client."""
    return Method(Weighted(BySize()), DittoClient(not_negative("pull", pull)))

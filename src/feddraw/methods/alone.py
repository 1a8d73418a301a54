"""Each client for itself: the local-only reference. Models go up, so that the ledger and the gate
see them, but nobody starts from the common one."""

from __future__ import annotations

from dataclasses import dataclass

from feddraw.core import ONE_SUM, Client, Job, Local, Memory, Method, Model, Server, Update, Vector
from feddraw.methods.uniform import Uniform


@dataclass(frozen=True)
class TrainsAlone(Local):
    keeps = {"own": "model"}
    secure = ONE_SUM
    starts_from_sent = False

    def start(self, job: Job, memory: Memory) -> Model:
        return self.personal(job.model, memory)

    def end(
        self, job: Job, update: Update, memory: Memory, client: Client
    ) -> tuple[dict[str, Vector], Memory]:
        return {}, {"own": update.model.joined()}

    def personal(self, shown: Model, memory: Memory) -> Model:
        return shown.with_joined(memory["own"]) if "own" in memory else shown


def alone() -> Method:
    """Each client for itself: the local-only reference."""
    return Method(TrainsAlone(), Uniform(), Server())

"""FedBN: every client keeps its batch-norm layers, scale, shift and statistics, for itself. (Li et
al., ICLR 2021)

The rest is FedAvg. A batch-norm layer is one with running statistics, whatever its name (the
authors look for "bn" in it, which no layer of a DenseNet has). The common model, for whoever has no
layers of its own, holds their average.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feddraw.core import BySize, Client, Job, Local, Memory, Method, Model, Update, Vector, Weighted


@dataclass(frozen=True)
class OwnBatchNorms(Local):
    keeps = {"norms": "model"}

    def start(self, job: Job, memory: Memory) -> Model:
        return self.personal(job.model, memory)

    def end(
        self, job: Job, update: Update, memory: Memory, client: Client
    ) -> tuple[dict[str, Vector], Memory]:
        in_norms = update.model.layout.batch_norm
        return {}, {"norms": np.where(in_norms, update.model.joined(), np.float32(0))}

    def personal(self, shown: Model, memory: Memory) -> Model:
        if "norms" not in memory:
            return shown
        return shown.with_joined(np.where(shown.layout.batch_norm, memory["norms"], shown.joined()))


def fedbn() -> Method:
    """FedAvg, with batch-norm layers kept by each client."""
    return Method(Weighted(BySize()), OwnBatchNorms())

"""FedBN: every client keeps its batch-norm layers, scale, shift and statistics, for itself. (Li et al., ICLR 2021)

The rest is FedAvg. A batch-norm layer is one with running statistics, whatever its name (the authors look for "bn" in
it, which no layer of a DenseNet has). The common model, for whoever has no layers of its own, holds their average.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddraw.core import Client, Job, Layout, Local, Memory, Method, Model, Server, Update, Vector
from feddraw.methods.fedavg import BySize


def of_batch_norm(layout: Layout) -> NDArray[np.bool_]:
    """Which elements of a joined model belong to a layer with running statistics."""
    layers = {entry.name.rpartition(".")[0] for entry in layout.entries if entry.kind == "buffer"}
    chosen = np.zeros(layout.extent("model"), bool)
    for entry in layout.entries:
        if entry.kind != "counter" and entry.name.rpartition(".")[0] in layers:
            start = entry.start + (layout.length("param") if entry.kind == "buffer" else 0)
            chosen[start : start + entry.size] = True
    return chosen


@dataclass(frozen=True)
class OwnNorms(Local):
    keeps = {"norms": "model"}

    def start(self, job: Job, memory: Memory) -> Model:
        return self.personal(job.model, memory)

    def end(self, job: Job, update: Update, memory: Memory, client: Client) -> tuple[dict[str, Vector], Memory]:
        return {}, {"norms": np.where(of_batch_norm(update.model.layout), update.model.joined(), np.float32(0))}

    def personal(self, shown: Model, memory: Memory) -> Model:
        if "norms" not in memory:
            return shown
        return shown.with_joined(np.where(of_batch_norm(shown.layout), memory["norms"], shown.joined()))


def fedbn() -> Method:
    """FedAvg, with batch-norm layers kept by each client."""
    return Method(OwnNorms(), BySize(), Server())

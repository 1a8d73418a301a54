"""MOON: features are drawn to those of the received model and away from the client's last one. (Li
et al., CVPR 2021)

The term is mu · log(1 + exp((cos(z, z_last) - cos(z, z_received)) / temperature)), averaged over
the batch; z is the classifier's input. Both references are frozen and in evaluation mode, so their
batch-norm statistics do not drift. In a client's first round there is no last model and no term.
The paper's projection head is a setting of the model (`model.projection`), because it changes the
network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feddraw.core import (
    BySize,
    Client,
    Correction,
    Job,
    Local,
    Memory,
    Method,
    Update,
    Vector,
    Weighted,
)
from feddraw.errors import not_negative, positive

if TYPE_CHECKING:
    from torch import Tensor


def contrastive_term(
    features: Tensor, received: Tensor, last: Tensor, temperature: float
) -> Tensor:
    """log(1 + exp((cos(z, last) - cos(z, received)) / temperature)), the mean over the batch."""
    from torch.nn.functional import cosine_similarity, softplus

    gap = cosine_similarity(features, last) - cosine_similarity(features, received)
    return softplus(gap / temperature).mean()


@dataclass(frozen=True)
class MoonClient(Local):
    mu: float = 1.0
    temperature: float = 0.5

    keeps = {"last": "model"}

    def begin(self, job: Job, memory: Memory, client: Client) -> Correction:
        if "last" not in memory or not self.mu:
            return Correction()
        received = client.features_of(job.model)
        last = client.features_of(job.model.with_joined(memory["last"]))

        def penalty(images: Tensor, features: Tensor) -> Tensor:
            return self.mu * contrastive_term(
                features, received(images), last(images), self.temperature
            )

        return Correction(penalty=penalty)

    def end(
        self, job: Job, update: Update, memory: Memory, client: Client
    ) -> tuple[dict[str, Vector], Memory]:
        return {}, {"last": update.model.joined()}


def moon(mu: float = 1.0, temperature: float = 0.5) -> Method:
    """FedAvg with a contrastive term on the features."""
    local = MoonClient(not_negative("mu", mu), positive("temperature", temperature))
    return Method(Weighted(BySize()), local)

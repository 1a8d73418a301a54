"""Adam and SGD over a network's flat parameters, by torch's fused kernels.

`torch.optim`'s classes load torch's compiler with the first that is made: as long as torch itself
takes to load, and 70 MB per process. The functions behind them do not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn, zeros, zeros_like
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from feddraw.training.network import Network
from feddraw.training.settings import Training


@dataclass(eq=False)
class Optimizer(ABC):
    """Steps along the gradient; what it remembers between them is `state`, under torch's names."""

    params: Tensor
    grads: Tensor
    lr: float
    weight_decay: float = 0.0
    state: dict[str, Tensor] = field(default_factory=dict)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Where a gradient scaler finds the gradients."""
        flat = nn.Parameter(self.params)
        flat.grad = self.grads
        return [{"params": [flat]}]

    @abstractmethod
    def step(self) -> None: ...


class Adam(Optimizer):
    def step(self) -> None:
        if not self.state:
            self.state = {
                "step": zeros((), device=self.params.device),
                "exp_avg": zeros_like(self.params),
                "exp_avg_sq": zeros_like(self.params),
            }
        adam(
            [self.params],
            [self.grads],
            exp_avgs=[self.state["exp_avg"]],
            exp_avg_sqs=[self.state["exp_avg_sq"]],
            max_exp_avg_sqs=[],
            state_steps=[self.state["step"]],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.lr,
            weight_decay=self.weight_decay,
            eps=1e-8,
            maximize=False,
        )


@dataclass(eq=False)
class SGD(Optimizer):
    momentum: float = 0.0

    def step(self) -> None:
        buffers = [self.state.get("momentum_buffer")]
        sgd(
            [self.params],
            [self.grads],
            buffers,
            fused=True,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        if buffers[0] is not None:
            self.state["momentum_buffer"] = buffers[0]


def make_optimizer(network: Network, training: Training) -> Optimizer:
    """The optimiser of the training section, over all of a network's parameters."""
    if training.optimizer == "sgd":
        return SGD(
            network.params,
            network.grads,
            lr=training.lr,
            weight_decay=training.weight_decay,
            momentum=training.momentum,
        )
    return Adam(network.params, network.grads, lr=training.lr, weight_decay=training.weight_decay)

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
            self.state = {"step": zeros((), device=self.params.device)}
            self.state |= {name: zeros_like(self.params) for name in ("exp_avg", "exp_avg_sq")}
        first, second, steps = ([self.state[name]] for name in ("exp_avg", "exp_avg_sq", "step"))
        adam(
            [self.params],
            [self.grads],
            first,
            second,
            [],
            steps,
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
    settings = (network.params, network.grads, training.lr, training.weight_decay)
    return (
        SGD(*settings, momentum=training.momentum)
        if training.optimizer == "sgd"
        else Adam(*settings)
    )

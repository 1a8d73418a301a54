"""The tiny network of the tests with layers that nobody trains; it needs no federated system."""

from __future__ import annotations

from torch import nn

import tiny
from feddraw.methods.fedavg import fedavg
from feddraw.training.client import Trainer

FROZEN_NAMES = ("first.weight", "second_norm.bias")


def half_frozen() -> tuple[nn.Module, str]:
    """The tiny network with a kernel and a shift of batch norm that nobody trains."""
    module, classifier = tiny.build()
    for name in FROZEN_NAMES:
        module.get_parameter(name).requires_grad_(False)
    return module, classifier


def site_trainer() -> Trainer:
    return Trainer(half_frozen, tiny.examples(), tiny.shards(), tiny.TRAINING, fedavg().local)

"""How every client trains: the settings of the training section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from feddraw.errors import UserError, at_least, below_one, not_negative, one_of, positive
from feddraw.training.devices import DEVICE_NAME, require_device


@dataclass(frozen=True)
class Training:
    """How every client trains; the same for all methods."""

    epochs: int = 2
    batch_size: int = 64
    lr: float = 1e-3
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.0  # of SGD
    weight_decay: float = 0.0  # L2, added to the gradient
    label_smoothing: float = 0.0
    clip: float = 0.0  # largest norm of a gradient; 0 = no clipping
    augment: bool = False  # rotation, translation, scaling of each batch
    # What all clients do equally much of in a round: passes over their own images, or optimiser
    # steps. With epochs a client with four times the images takes four times the steps.
    work: Literal["epochs", "steps"] = "epochs"
    # With `work = "steps"`: how many each client takes; 0 = as many as `epochs` gives on average.
    steps: int = 0
    persist_optimizer: bool = False  # keep Adam's moments at the client between rounds
    device: str = "cpu"  # or cuda, cuda:1, mps
    # The network in half the precision; its parameters stay in float32.
    amp: Literal["off", "bf16", "fp16"] = "off"
    tf32: bool = False  # let a GPU round the factors of products to 10 bits: faster, less exact
    # The network by torch.compile, which takes time at the start and a C++ compiler.
    compile: bool = False

    def check(self) -> None:
        """Refuse values that cannot be trained with."""
        positive("training.lr", self.lr)
        for name in ("weight_decay", "clip", "steps"):
            not_negative(f"training.{name}", getattr(self, name))
        for name in ("momentum", "label_smoothing"):
            below_one(f"training.{name}", getattr(self, name))
        at_least("training.epochs", self.epochs, 1)
        if self.batch_size < 2:
            raise UserError(
                f"training.batch_size must be at least 2, not {self.batch_size}: batch"
                " normalisation cannot train on one image"
            )
        one_of("training.work", self.work, ("epochs", "steps"))
        if self.steps and self.work == "epochs":
            raise UserError(
                f"training.steps = {self.steps} has no effect while training.work is 'epochs': set"
                " training.work = 'steps' too"
            )
        one_of("training.optimizer", self.optimizer, ("adam", "sgd"))
        one_of("training.amp", self.amp, ("off", "bf16", "fp16"))
        if not DEVICE_NAME.fullmatch(self.device):
            raise UserError(
                "training.device must be cpu, cuda, cuda:1 or the like, or mps, not"
                f" '{self.device}'"
            )

    def available_device(self) -> torch.device:
        """The device, if this machine has it."""
        return require_device(self.device, "training.device")

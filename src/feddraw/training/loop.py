"""The one training loop, and the images that it reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddraw.core import Correction, Vector
from feddraw.errors import UserError
from feddraw.training.augment import augment
from feddraw.training.image_feed import ImageFeed, feed_to
from feddraw.training.network import CPU, Network
from feddraw.training.objective import PRESENCE, Loss, Objective
from feddraw.training.optimizers import Optimizer
from feddraw.training.settings import Training

Rows = NDArray[np.intp]
EVALUATION_BATCH = 256  # images evaluated together


@dataclass(frozen=True, eq=False)
class Examples:
    """Images and targets as the training loop reads them."""

    # (n, height, width) grey levels, or (n, height, width, 3) in colour; or features of a frozen
    # part of the network, in any shape and as floating numbers, behind which lie those of each
    # augmented copy
    images: NDArray[Any]
    targets: NDArray[np.float32]  # (n, classes): 1, 0, and NaN where a label is not known
    mean: float = 0.5
    std: float = 0.25
    groups: NDArray[np.int8] | None = None  # (n,), 0 or 1, below zero where it is not known
    # (n,), a number for each image's patient, where a rule must keep a patient's images together
    patients: NDArray[np.int64] | None = None
    copies: int = 0  # of every image, beside itself; training draws from these
    _feeds: dict[torch.device, ImageFeed] = field(default_factory=dict, init=False, repr=False)

    def batch(self, rows: Rows, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
        """Images, normalised, and targets of some rows."""
        return next(self.batches([rows], device))

    def batches(
        self, chosen: Iterable[Rows], device: torch.device = CPU
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and targets of each batch, on their way to the device while the one before is
        computed on.
        """
        if self.images.dtype != np.uint8:
            yield from self._feature_batches(chosen, device)
            return
        for pixels, targets in self._feed(device)(chosen):
            channels_first = pixels.unsqueeze(1) if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
            images = channels_first.float().sub_(255 * self.mean).div_(255 * self.std)
            yield images.contiguous(memory_format=torch.channels_last), targets

    def _feature_batches(
        self, chosen: Iterable[Rows], device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Features need no more than single precision, and the order of pixels that images have."""
        for kept, targets in self._feed(device)(chosen):
            features = kept.float()
            if features.ndim == 4:
                features = features.contiguous(memory_format=torch.channels_last)
            yield features, targets

    def _feed(self, device: torch.device) -> ImageFeed:
        if device == CPU:
            return self._in_memory
        if device not in self._feeds:
            targets = np.tile(self.targets, (1 + self.copies, 1)) if self.copies else self.targets
            self._feeds[device] = feed_to(device, (self.images, targets))
        return self._feeds[device]

    def _in_memory(self, chosen: Iterable[Rows]) -> Iterator[list[Tensor]]:
        for rows in chosen:
            labelled = rows % len(self.targets) if self.copies else rows
            yield [torch.from_numpy(self.images[rows]), torch.from_numpy(self.targets[labelled])]

    def drawn_copies(self, chosen: Iterable[Rows], seed: int) -> Iterator[Rows]:
        """The batches with one of its augmented copies in place of every image."""
        rng = np.random.default_rng([seed, 1])
        for rows in chosen:
            yield rows + len(self.targets) * rng.integers(1, 1 + self.copies, len(rows))

    @cached_property
    def complete(self) -> bool:
        """Whether every label is known; then no batch is checked, which would wait for the GPU."""
        return not np.isnan(self.targets).any()


def epoch_batches(rows: Rows, size: int, rng: np.random.Generator) -> Iterator[Rows]:
    """One epoch in random order; the last batch may be smaller, but a single image is dropped for
    batch norm's sake.
    """
    order = rng.permutation(rows)
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        if len(batch) > 1:
            yield batch


def images_with_labels(targets: Tensor) -> float:
    """How many images' worth of known labels a batch has: its length where every label is known."""
    return int((~targets.isnan()).sum()) / targets.shape[1]


def loss_over_known(loss: Loss, logits: Tensor, targets: Tensor, complete: bool = False) -> Tensor:
    """The mean loss over the known labels; where all are known, as `complete` says beforehand, the
    plain loss. Images of which all or no labels are known stay images, of others the loss gets
    entries.
    """
    if complete:
        return loss(logits, targets)
    known = ~targets.isnan()
    if bool(known.all()):
        return loss(logits, targets)
    whole = known.all(dim=1)
    if bool((whole == known.any(dim=1)).all()):
        return loss(logits[whole], targets[whole])
    return loss(logits[known], targets[known])


def steps_in_round(images: int, training: Training, effort: float = 1.0) -> int:
    """How many optimiser steps a client takes in a round."""
    full = training.steps or training.epochs * steps_per_epoch(images, training.batch_size)
    return max(1, math.floor(effort * full + 0.5))


def steps_per_epoch(images: int, batch_size: int) -> int:
    """How many batches `epoch_batches` gives."""
    full, rest = divmod(images, batch_size)
    return full * (batch_size > 1) + (rest > 1)


def with_number_of_steps(training: Training, sizes: Sequence[int]) -> Training:
    """The same settings with `steps` filled in, where clients of these sizes take equally many.

    The number is the mean of the steps that `epochs` would give each client, so that all clients
    together do the same work either way.
    """
    if training.work == "epochs" or training.steps:
        return training
    in_epochs = [training.epochs * steps_per_epoch(size, training.batch_size) for size in sizes]
    mean = sum(in_epochs) / len(in_epochs)
    return replace(training, steps=max(1, math.floor(mean + 0.5)))


@dataclass(frozen=True, eq=False)
class LocalTraining:
    """How one client trains in one round."""

    training: Training
    loss: Loss
    seed: int  # of the order of images and of augmentation
    correction: Correction = field(default_factory=Correction)
    effort: float = 1.0  # share of the usual steps


def fit(
    network: Network,
    optimizer: Optimizer,
    examples: Examples,
    rows: Rows,
    how: LocalTraining,
    steps_taken: NDArray[np.int64] | None = None,
) -> tuple[int, float]:
    """Train the network in place; returns optimiser steps taken and the mean loss.

    A batch without any known label makes no step. It uses up its place in an epoch, but not one of
    `training.steps`. `steps_taken` is one number that is kept up to date for other threads and
    processes that show progress.
    """
    training = how.training
    correction = how.correction
    if not steps_per_epoch(len(rows), training.batch_size):  # or training would never end
        few = f"{len(rows)} image(s) at batch size {training.batch_size}"
        raise UserError(f"{few}: too few for a training step, at least 2 are needed")
    if np.isnan(examples.targets[rows]).all():
        raise UserError(
            f"none of the {len(rows)} training images has a known label: leave this client out"
        )
    rng = np.random.default_rng(how.seed)
    generator = torch.Generator().manual_seed(how.seed)  # for augmentation
    received = network.params.clone() if correction.pull else None
    linear = _on_network(network, correction.linear)
    shift = _on_network(network, correction.shift)
    drift = _on_network(network, correction.drift)
    scaler = torch.amp.GradScaler(network.device.type, enabled=training.amp == "fp16")
    limit = steps_in_round(len(rows), training, how.effort)
    chosen = _training_batches(rows, examples, training, limit, rng)
    if examples.copies:
        chosen = examples.drawn_copies(chosen, how.seed)
    steps = 0
    batches = 0
    total_loss = torch.zeros((), device=network.device)
    network.module.train()
    for pixels, targets in examples.batches(chosen, network.device):
        # drawn on the processor, done on the device
        augmented = training.augment and not examples.copies
        images = augment(pixels, generator) if augmented else pixels

        total_loss += loss_and_gradient(
            network,
            images,
            targets,
            how.loss,
            penalty=correction.penalty,
            scaler=scaler,
            complete=examples.complete,
        )
        scaler.unscale_(optimizer)  # type: ignore[arg-type]

        # what belongs to the loss comes before clipping
        if received is not None:
            network.grads.add_(network.params - received, alpha=correction.pull)
        if linear is not None:
            network.grads.add_(linear)
        if training.clip:
            norm = torch.linalg.vector_norm(network.grads)
            network.grads.mul_(torch.clamp(training.clip / (norm + 1e-6), max=1.0))

        # what corrects the step comes after
        if shift is not None:
            network.grads.add_(shift)
        scale = scaler.get_scale()
        scaler.step(optimizer)  # type: ignore[arg-type]
        scaler.update()
        batches += 1
        if scaler.get_scale() < scale:  # fp16 had an overflow: this was no step
            continue
        if drift is not None:
            network.params.sub_(drift, alpha=training.lr)
        steps += 1
        if steps_taken is not None:
            steps_taken[...] = steps
    return max(1, steps), float(total_loss) / batches


def _on_network(network: Network, vector: Vector | None) -> Tensor | None:
    return None if vector is None else network.vector(vector)


def _training_batches(
    rows: Rows, examples: Examples, training: Training, limit: int, rng: np.random.Generator
) -> Iterator[Rows]:
    """The batches to step with, at least one, until the limit is reached.

    Where the limit is one of steps (`training.steps`), a batch without a known label does not count
    towards it; where it comes from epochs, it does.
    """
    towards_limit = 0
    yielded = 0
    while True:
        for batch in epoch_batches(rows, training.batch_size, rng):
            has_labels = not np.isnan(examples.targets[batch]).all()
            if has_labels or not training.steps:
                towards_limit += 1
            if has_labels:
                yielded += 1
                yield batch
            if yielded and towards_limit >= limit:
                return


def loss_and_gradient(
    network: Network,
    images: Tensor,
    targets: Tensor,
    loss: Loss,
    penalty: Callable[[Tensor, Tensor], Tensor] | None = None,
    scaler: torch.amp.GradScaler | None = None,
    complete: bool = False,
) -> Tensor:
    """The loss of one batch, its gradient left in `network.grads`: nowhere else are client data
    differentiated.
    """
    network.grads.zero_()
    logits, features = network(images)
    value = loss_over_known(loss, logits, targets, complete)
    if penalty is not None:
        value = value + penalty(images, features)
    scaled = value if scaler is None else scaler.scale(value)
    scaled.backward()  # type: ignore[no-untyped-call]
    return value.detach()


@torch.no_grad()
def logits_of(network: Network, examples: Examples, rows: Rows) -> Tensor:
    """The outputs for some images before they are probabilities, on the processor.

    In evaluation mode. The batches are fixed, so that the bits do not depend on who computes them.
    """
    network.module.eval()
    starts = range(0, len(rows), EVALUATION_BATCH)
    batches = [rows[start : start + EVALUATION_BATCH] for start in starts]
    logits = [network(images)[0] for images, _ in examples.batches(batches, network.device)]
    return torch.cat(logits).cpu()


def predict(
    network: Network, examples: Examples, rows: Rows, objective: Objective = PRESENCE
) -> NDArray[np.float32]:
    """(images, outputs): probabilities."""
    return np.asarray(objective.probabilities(logits_of(network, examples, rows)).numpy())

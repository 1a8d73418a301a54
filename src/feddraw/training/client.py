"""One client's work in a round: start, correction, training, answers to what the server asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from feddraw import core
from feddraw.core import (
    Correction,
    Extent,
    Job,
    Layout,
    Local,
    Measurement,
    Memory,
    Model,
    Update,
    Vector,
)
from feddraw.training import loop
from feddraw.training.allocator import keep_freed_memory
from feddraw.training.batch_gradients import batch_gradients, gradient_summary
from feddraw.training.loop import Examples, Loss, Rows
from feddraw.training.network import Build, Network, layout_of_module
from feddraw.training.network_by_name import with_frozen_layers
from feddraw.training.optimizers import Optimizer, make_optimizer
from feddraw.training.reproducibility import one_thread, seeded_torch
from feddraw.training.settings import Training


@dataclass(eq=False)
class Trainer:
    """What trains the clients of one process: a network that all share, the examples, and each
    client's rows.
    """

    build: Build
    examples: Examples
    shards: Sequence[Rows]  # by client
    training: Training
    local: Local
    loss: Loss = nn.functional.binary_cross_entropy_with_logits
    asks: tuple[str, ...] = ()  # what the weighting or the server wants to know of every client

    @property
    def sends(self) -> dict[str, Extent]:
        extras = core.extras_of(self.local, self.asks)
        return {name: extra.extent for name, extra in extras.items()}

    def __post_init__(self) -> None:
        keep_freed_memory()
        self.solver = core.Solver(self.training.optimizer, self.training.lr, self.training.momentum)
        self.local.check(self.solver)
        self.steps_taken = np.zeros(len(self.shards), np.int64)  # by client, of the work under way
        self._references: list[Network] = []  # made when a rule first asks for them

    @cached_property
    def network(self) -> Network:
        """Made when something is first trained: a process that only sends others to work takes no
        memory of a GPU.
        """
        return Network(*self.build(), self.training)

    @cached_property
    def layout(self) -> Layout:
        return layout_of_module(*self.build())

    def freeze(self, frozen: Mapping[str, Vector]) -> None:
        """Other values for the frozen layers."""
        self.build, self._references = with_frozen_layers(self.build, frozen), []
        for made in ("network", "layout"):
            self.__dict__.pop(made, None)

    def smoothed_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        smoothing = self.training.label_smoothing
        return self.loss(
            logits, targets * (1 - smoothing) + smoothing / 2 if smoothing else targets
        )

    @cached_property
    def labelled(self) -> list[NDArray[np.bool_] | None]:
        """By client, the findings that it has a known label of; None = all."""
        unknown = [np.isnan(self.examples.targets[rows]).all(axis=0) for rows in self.shards]
        return [np.logical_not(columns) if columns.any() else None for columns in unknown]

    def reference(self, position: int) -> Network:
        """A network beside the one in training."""
        while len(self._references) <= position:
            self._references.append(Network(*self.build(), self.training))
        return self._references[position]

    def batch_gradients(
        self, client: int, model: Model, how: Measurement, layer: str, seed: int
    ) -> Iterator[Vector]:
        """One client's, each of a layer's parameters in their natural order."""
        about = self.examples, self.shards[client], self.smoothed_loss
        return batch_gradients(self.reference(0), *about, model, how, layer, seed)

    def work(self, job: Job, memory: Memory, into: Model | None = None) -> tuple[Update, Memory]:
        """One client's part of a round: begin, fit, end.

        The trained state is written to `into`, if given.
        """
        began = time.perf_counter()
        client = _Client(self, job, memory)
        rows = self.shards[job.client]
        with seeded_torch(job.seed, self.network.device), one_thread():
            correction = self.local.begin(job, memory, client)
            self.network.load(self.local.start(job, memory))
            optimizer = make_optimizer(self.network, self.training)
            if self.training.persist_optimizer:
                _restore_optimizer(optimizer, self.network, memory)
            settings = (
                self.training,
                correction,
                job.seed,
                self.smoothed_loss,
                optimizer,
                job.effort,
            )
            taken = self.steps_taken[job.client : job.client + 1]
            steps, loss = loop.fit(self.network, self.examples, rows, *settings, steps_taken=taken)
            model = into or core.empty_model(self.network.layout)
            self.network.read_into(model)
            update = Update(job.client, model, len(rows), steps, {"loss": loss})
            extra, remembered = self.local.end(job, update, memory, client)
            extra = {**extra, **{name: client.answer(name, model) for name in self.asks}}
            if self.training.persist_optimizer:
                remembered |= _optimizer_moments(optimizer, self.network)
        finite = all(
            np.isfinite(vector).all()
            for vector in (model.params, model.buffers, *remembered.values())
        )
        update = replace(
            update,
            extra=extra,
            labelled=self.labelled[job.client],
            seconds=time.perf_counter() - began,
        )
        return (
            update,
            remembered if finite else memory,
        )  # a failed round must not spoil the client's next one


class _Client:
    """What a local rule may ask of its client (see `core.Client`), answered by the trainer."""

    def __init__(self, trainer: Trainer, job: Job, memory: Memory) -> None:
        self.solver = trainer.solver
        self._trainer, self._job, self._memory, self._feature_networks = trainer, job, memory, 0

    def full_gradient(self) -> Vector:
        trainer, rows = self._trainer, self._trainer.shards[self._job.client]
        network = trainer.reference(0)
        network.load(self._job.model)
        network.module.train()
        total, seen = torch.zeros_like(network.grads), 0.0
        for batch in loop.epoch_batches(
            rows, trainer.training.batch_size, np.random.default_rng(self._job.seed)
        ):
            images, targets = trainer.examples.batch(batch, network.device)
            if count := loop.images_with_labels(targets):
                loop.loss_and_gradient(network, images, targets, trainer.smoothed_loss)
                total.add_(network.grads, alpha=count)
                seen += count
        return network.values(total / seen if seen else total)

    def trained(self, start: Model, correction: Correction) -> Model:
        trainer, network = self._trainer, self._trainer.reference(0)
        network.load(start)
        optimizer = make_optimizer(network, trainer.training)
        settings = (
            trainer.training,
            correction,
            self._job.seed,
            trainer.smoothed_loss,
            optimizer,
            self._job.effort,
        )
        loop.fit(network, trainer.examples, trainer.shards[self._job.client], *settings)
        return network.read()

    def answer(self, question: str, trained: Model) -> Vector:
        """What the weighting or the server wants to know (see `core.ASKED`)."""
        return (
            self._measured[question]
            if question in self._measured
            else self._answer(question, trained)
        )

    def _answer(self, question: str, trained: Model) -> Vector:
        rows, examples = self._trainer.shards[self._job.client], self._trainer.examples
        targets = examples.targets[rows]
        if question == "gradient":
            return self.full_gradient()
        if question == "held":
            return self._memory.get(self._trainer.local.held, np.zeros_like(trained.params))
        if question == "labels":
            return np.asarray(np.nansum(targets, axis=0))
        network = self._trainer.reference(0)
        network.load(trained if question == "accuracy" else self._job.model)
        logits = loop.logits_of(network, examples, rows)
        if question == "loss":
            value = loop.loss_over_known(
                self._trainer.smoothed_loss, logits, torch.from_numpy(targets)
            )
            return np.array([value], np.float32)
        if question == "accuracy":
            right = (logits.numpy() >= 0) == (targets >= 0.5)
            return np.array([np.mean(right[~np.isnan(targets)])], np.float32)
        return client_group_counts(
            logits.numpy(), targets, None if examples.groups is None else examples.groups[rows]
        )

    @cached_property
    def _measured(self) -> dict[str, Vector]:
        """The mean of some batch gradients, and their spread; zeros in a round without a
        measurement.
        """
        job, how, found = (
            self._job,
            Measurement.from_broadcast(self._job.broadcast),
            dict[str, Vector](),
        )
        for question in [name for name in core.GRADIENT_MEANS if name in self._trainer.asks]:
            layer = "all" if question == "gradient mean" else "classifier"
            gradients = self._trainer.batch_gradients(job.client, job.model, how, layer, job.seed)
            due = gradients if job.round % how.every == 0 else iter(())
            found[question], spread = gradient_summary(
                due, job.model.layout.parameters_in(layer), how.batch_size
            )
            found.setdefault("gradient spread", spread)
        return found

    def features_of(self, model: Model) -> Callable[[Tensor], Tensor]:
        network = self._trainer.reference(self._feature_networks)
        self._feature_networks += 1
        network.load(model)
        network.module.eval()

        @torch.no_grad()
        def features(images: Tensor) -> Tensor:
            return network(images)[1]

        return features


def client_group_counts(logits: Vector, targets: Vector, groups: NDArray[np.int8] | None) -> Vector:
    """The counts of `core.GROUP_COUNTS`. A finding is called where its score is among the highest,
    as many as have it.

    At a score of one half next to nobody is called positive while findings are rare, and both
    groups look alike.
    """
    positive, known = targets >= 0.5, ~np.isnan(targets)
    share = positive.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    columns = zip(logits.T, known.T, share, strict=True)
    limit = [
        np.quantile(scores[of], 1 - p, method="higher") if of.any() else np.inf
        for scores, of, p in columns
    ]
    called = (logits >= limit) & (share > 0) & known
    member = [
        np.zeros(len(targets), bool) if groups is None else groups == group for group in (0, 1)
    ]
    counts = [(positive & of[:, None]).sum(axis=0) for of in member]
    found = [(positive & called & of[:, None]).sum(axis=0) for of in member]
    right = [known.sum(), ((called == positive) & known).sum()]
    return np.concatenate([*counts, *found, right]).astype(np.float32)


def client_memory_extents(local: Local, training: Training) -> dict[str, Extent]:
    """What a client keeps between rounds: for its method, and for its optimiser if that is to
    persist.
    """
    moments: dict[str, Extent] = {}
    if training.persist_optimizer and training.optimizer == "adam":
        moments = {
            "optimizer.exp_avg": "params",
            "optimizer.exp_avg_sq": "params",
            "optimizer.step": "number",
        }
    elif training.persist_optimizer and training.momentum:
        moments = {"optimizer.momentum_buffer": "params"}
    return {**local.keeps, **moments}


def _optimizer_moments(optimizer: Optimizer, network: Network) -> Memory:
    return {
        f"optimizer.{key}": network.values(value)
        if value.ndim
        else np.array([float(value)], np.float32)
        for key, value in optimizer.state.items()
    }


def _restore_optimizer(optimizer: Optimizer, network: Network, memory: Memory) -> None:
    moments = {
        key.removeprefix("optimizer."): v
        for key, v in memory.items()
        if key.startswith("optimizer.")
    }
    optimizer.state = {
        key: torch.tensor(float(value[0]), device=network.device)
        if key == "step"
        else network.vector(value)
        for key, value in moments.items()
    }

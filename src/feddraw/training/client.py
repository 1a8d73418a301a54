"""One client's work in a round: start, correction, training, answers to what the server asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
from feddraw.errors import UserError
from feddraw.training import loop
from feddraw.training.allocator import keep_freed_memory
from feddraw.training.batch_gradients import batch_gradients, gradient_summary
from feddraw.training.loop import Examples, LocalTraining, Rows
from feddraw.training.network import Build, Network, layout_of_module
from feddraw.training.network_by_name import with_frozen_layers
from feddraw.training.objective import PRESENCE, Objective
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
    objective: Objective = PRESENCE
    asks: tuple[str, ...] = ()  # what the weighting or the server wants to know of every client
    # The examples that come out of a frozen part with these values, where clients train on features
    # and its values come later.
    examples_behind: Callable[[Mapping[str, Vector]], Examples] | None = None

    @property
    def sends(self) -> dict[str, Extent]:
        extras = core.extras_of(self.local, self.asks)
        return {name: extra.extent for name, extra in extras.items()}

    def __post_init__(self) -> None:
        keep_freed_memory()
        self._own_build = self.build
        self.solver = core.Solver(self.training.optimizer, self.training.lr, self.training.momentum)
        self.local.check(self.solver)
        self.steps_taken = np.zeros(len(self.shards), np.int64)  # by client, of the work under way
        self._references: list[Network] = []  # made when a rule first asks for them

    @cached_property
    def network(self) -> Network:
        """Made when something is first trained, so that a process whose workers train takes no
        memory of a GPU.
        """
        return Network(*self.build(), self.training)

    @cached_property
    def layout(self) -> Layout:
        return layout_of_module(*self.build())

    def freeze(self, frozen: Mapping[str, Vector]) -> None:
        """Other values for the frozen layers; the network's own where none are given."""
        build = with_frozen_layers(self._own_build, frozen)
        if build is self.build:
            return
        self.build = build
        if self.examples_behind is not None and frozen:
            self.examples = self.examples_behind(frozen)
        self._references = []
        for built in ("network", "layout"):
            self.__dict__.pop(built, None)

    def smoothed_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The task's loss with `training.label_smoothing`."""
        return self.objective.loss(logits, targets, self.training.label_smoothing)

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
        return batch_gradients(
            self.reference(0),
            self.examples,
            self.shards[client],
            self.smoothed_loss,
            model=model,
            how=how,
            layer=layer,
            seed=seed,
        )

    def local_training(
        self, seed: int, correction: Correction | None = None, effort: float = 1.0
    ) -> LocalTraining:
        """This trainer's settings and loss, for `loop.fit`."""
        return LocalTraining(
            self.training, self.smoothed_loss, seed, correction or Correction(), effort
        )

    def work(self, job: Job, memory: Memory, into: Model | None = None) -> tuple[Update, Memory]:
        """One client's part of a round: begin, fit, end.

        Gives its update, and what it will remember if the update counts. The trained state is
        written to `into`, if given.
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
            steps, loss = loop.fit(
                self.network,
                optimizer,
                self.examples,
                rows,
                self.local_training(job.seed, correction, job.effort),
                steps_taken=self.steps_taken[job.client : job.client + 1],
            )
            model = into or core.empty_model(self.network.layout)
            self.network.read_into(model)
            update = Update(job.client, model, len(rows), steps, {"loss": loss})
            extra, learnt = self.local.end(job, update, memory, client)
            answers = {question: client.answer(question, model) for question in self.asks}
            if self.training.persist_optimizer:
                learnt |= _optimizer_moments(optimizer, self.network)
        update = replace(
            update,
            extra={**extra, **answers},
            labelled=self.labelled[job.client],
            seconds=time.perf_counter() - began,
        )
        # a failed round must not spoil the client's next one
        vectors = (model.params, model.buffers, *learnt.values())
        finite = all(np.isfinite(vector).all() for vector in vectors)
        return update, learnt if finite else memory


class _Client:
    """What a local rule may ask of its client (see `core.Client`), answered by the trainer."""

    def __init__(self, trainer: Trainer, job: Job, memory: Memory) -> None:
        self.solver = trainer.solver
        self._trainer = trainer
        self._job = job
        self._memory = memory
        self._rows = trainer.shards[job.client]
        self._feature_networks = 0

    def full_gradient(self) -> Vector:
        """The mean gradient over all images at the received model."""
        trainer = self._trainer
        network = trainer.reference(0)
        network.load(self._job.model)
        network.module.train()
        rng = np.random.default_rng(self._job.seed)
        total = torch.zeros_like(network.grads)
        images_seen = 0.0
        for batch in loop.epoch_batches(self._rows, trainer.training.batch_size, rng):
            images, targets = trainer.examples.batch(batch, network.device)
            if count := loop.images_with_labels(targets):
                loop.loss_and_gradient(network, images, targets, trainer.smoothed_loss)
                total.add_(network.grads, alpha=count)
                images_seen += count
        return network.values(total / images_seen if images_seen else total)

    def trained(self, start: Model, correction: Correction) -> Model:
        """Another model, trained as this round's is."""
        trainer = self._trainer
        network = trainer.reference(0)
        network.load(start)
        optimizer = make_optimizer(network, trainer.training)
        how = trainer.local_training(self._job.seed, correction, self._job.effort)
        loop.fit(network, optimizer, trainer.examples, self._rows, how)
        return network.read()

    def answer(self, question: str, trained: Model) -> Vector:
        """What the weighting or the server wants to know (see `core.ASKED`)."""
        if question in self._measured:
            return self._measured[question]
        answers: dict[str, Callable[[], Vector]] = {
            "gradient": self.full_gradient,
            "held": lambda: self._held(trained),
            "labels": lambda: np.asarray(np.nansum(self._targets, axis=0)),
            "loss": lambda: np.array([self._loss_of(self._job.model)], np.float32),
            "trained loss": lambda: np.array([self._loss_of(trained)], np.float32),
            "accuracy": lambda: np.array([self.accuracy_of(trained)], np.float32),
            "groups": self._group_counts,
        }
        if question not in answers:
            raise UserError(f"no client can answer '{question}': it answers {', '.join(answers)}")
        return answers[question]()

    def _held(self, trained: Model) -> Vector:
        """What the local rule holds for the server; zeros before it has any."""
        return self._memory.get(self._trainer.local.held, np.zeros_like(trained.params))

    def _group_counts(self) -> Vector:
        """Of the received model, for the groups that the examples name."""
        logits = self._logits(self._job.model)
        groups = self._trainer.examples.groups
        groups = None if groups is None else groups[self._rows]
        return group_counts(logits.numpy(), self._targets, groups)

    def accuracy_of(self, model: Model) -> float:
        """The share of the client's known labels that a model gets right."""
        right = self._trainer.objective.right(self._logits(model).numpy(), self._targets)
        return float(np.mean(right))

    def _loss_of(self, model: Model) -> float:
        """The mean loss over the client's images, in evaluation mode."""
        targets = torch.from_numpy(self._targets)
        loss = loop.loss_over_known(self._trainer.smoothed_loss, self._logits(model), targets)
        return float(loss)

    @property
    def _targets(self) -> Vector:
        return np.asarray(self._trainer.examples.targets[self._rows])

    def _logits(self, model: Model) -> Tensor:
        network = self._trainer.reference(0)
        network.load(model)
        return loop.logits_of(network, self._trainer.examples, self._rows)

    @cached_property
    def _measured(self) -> dict[str, Vector]:
        """The mean of some batch gradients, and their spread; zeros in a round without a
        measurement.
        """
        job = self._job
        how = Measurement.from_broadcast(job.broadcast)
        due = job.round % how.every == 0
        answers: dict[str, Vector] = {}
        for question in core.GRADIENT_MEANS:
            if question not in self._trainer.asks:
                continue
            layer = "all" if question == "gradient mean" else "classifier"
            gradients = self._trainer.batch_gradients(job.client, job.model, how, layer, job.seed)
            mean, spread, variances = gradient_summary(
                gradients if due else iter(()),
                job.model.layout.parameters_in(layer),
                how.batch_size,
                job.model.layout.rows_within(layer),
            )
            answers[question] = mean
            answers.setdefault("gradient spread", spread)
            answers.setdefault("gradient variances", variances)
        return answers

    def features_of(self, model: Model) -> Callable[[Tensor], Tensor]:
        network = self._trainer.reference(self._feature_networks)
        self._feature_networks += 1
        network.load(model)
        network.module.eval()

        @torch.no_grad()
        def features(images: Tensor) -> Tensor:
            return network(images)[1]

        return features


def group_counts(logits: Vector, targets: Vector, groups: NDArray[np.int8] | None) -> Vector:
    """The counts of `core.GROUP_COUNTS` for images with these scores, labels and groups (0 or 1).

    A finding is called positive where its score is among the highest, for as many images as have
    it. At a score of one half next to nobody would be called positive while findings are rare, and
    both groups would look alike.
    """
    positive = targets >= 0.5
    known = ~np.isnan(targets)
    prevalence = positive.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    thresholds = [
        np.quantile(scores[labelled], 1 - share, method="higher") if labelled.any() else np.inf
        for scores, labelled, share in zip(logits.T, known.T, prevalence, strict=True)
    ]
    called = (logits >= thresholds) & (prevalence > 0) & known
    nobody = np.full(len(targets), -1)
    members = [(nobody if groups is None else groups) == group for group in (0, 1)]
    positives = [(positive & of_group[:, None]).sum(axis=0) for of_group in members]
    detected = [(positive & called & of_group[:, None]).sum(axis=0) for of_group in members]
    right = ((called == positive) & known).sum()
    return np.concatenate([*positives, *detected, [known.sum(), right]]).astype(np.float32)


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
    """What the optimiser remembers, as a client keeps it."""
    moments: Memory = {}
    for name, tensor in optimizer.state.items():
        if tensor.ndim:
            moments[f"optimizer.{name}"] = network.values(tensor)
        else:
            moments[f"optimizer.{name}"] = np.array([float(tensor)], np.float32)
    return moments


def _restore_optimizer(optimizer: Optimizer, network: Network, memory: Memory) -> None:
    """The way back from `_optimizer_moments`."""
    for key, values in memory.items():
        kind, _, name = key.partition(".")
        if kind == "optimizer" and name == "step":
            optimizer.state[name] = torch.tensor(float(values[0]), device=network.device)
        elif kind == "optimizer":
            optimizer.state[name] = network.vector(values)

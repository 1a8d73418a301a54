"""The one training loop, and the passage between a torch network and a flat `Model`.

A network's parameters, gradients and batch-norm buffers are laid out as views of flat tensors, so that clipping,
corrections and the optimiser are single operations, whatever the number of layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from feddraw.allocator import keep_freed
from feddraw.core import (
    Asked,
    Correction,
    Entry,
    Extent,
    Job,
    Layout,
    Local,
    Memory,
    Model,
    Solver,
    Update,
    Vector,
    beside,
)
from feddraw.data.augment import augment
from feddraw.errors import UserError, not_negative, one_of, positive
from feddraw.optimizers import SGD, Adam, Optimizer

Loss = Callable[[Tensor, Tensor], Tensor]  # logits, targets -> mean loss
Rows = NDArray[np.intp]

CPU = torch.device("cpu")
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
RESIDENT = 0.5  # share of a GPU's free memory that the images may take; more are copied batch by batch


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
    steps: int = 0  # optimiser steps a round, instead of epochs, for clients that should all do the same work
    persist_optimizer: bool = False  # keep Adam's moments at the client between rounds
    device: str = "cpu"  # or cuda, cuda:1, mps
    amp: Literal["off", "bf16", "fp16"] = "off"  # the network in half the precision; its parameters stay in float32
    compile: bool = False  # the network by torch.compile, which takes time at the start and a C++ compiler

    def check(self) -> None:
        """Refuse values that cannot be trained with."""
        positive("training.lr", self.lr)
        for name in ("momentum", "weight_decay", "label_smoothing", "clip", "steps"):
            not_negative(f"training.{name}", getattr(self, name))
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"training.{name} must be at least 1, not {getattr(self, name)}")
        if self.batch_size == 1:
            raise UserError("training.batch_size must be at least 2: batch normalisation cannot train on one image")
        for name in ("momentum", "label_smoothing"):
            if getattr(self, name) >= 1:
                raise UserError(f"training.{name} must be below 1, not {getattr(self, name)}")
        one_of("training.optimizer", self.optimizer, ("adam", "sgd"))
        one_of("training.amp", self.amp, ("off", "bf16", "fp16"))
        if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", self.device):
            raise UserError(f"training.device must be cpu, cuda, cuda:1 or the like, or mps, not '{self.device}'")

    def there(self) -> torch.device:
        """The device, if this machine has it."""
        device = torch.device(self.device)
        gpus = torch.cuda.device_count() if device.type == "cuda" else int(torch.backends.mps.is_available())
        if device.type != "cpu" and (device.index or 0) >= gpus:
            raise UserError(f"training.device is {self.device}, but torch finds no such device here: use cpu")
        return device


class Network:
    """A torch module whose state lies in flat tensors: `params`, `grads`, `buffers`, `counters`."""

    def __init__(self, module: nn.Module, classifier: str, training: Training | None = None) -> None:
        how = training or Training()
        self.device = how.there()
        self.module = module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.layout = layout_of(module, classifier)
        self.params = torch.empty(self.layout.length("param"), device=self.device)
        self.grads = torch.zeros_like(self.params)
        self.buffers = torch.empty(self.layout.length("buffer"), device=self.device)
        self.counters = torch.empty(self.layout.length("counter"), dtype=torch.int64, device=self.device)
        self._half = HALVES.get(how.amp)
        self._pieces = _pieces([entry for entry in self.layout.entries if entry.kind == "param"])
        self._features: Tensor | None = None
        self._adopt()
        module.get_submodule(classifier).register_forward_pre_hook(self._keep_features)
        self._forward = torch.compile(self.module) if how.compile else self.module

    def _adopt(self) -> None:
        """Make every tensor of the module a view of one of ours, keeping its values."""
        flat = {"param": self.params, "buffer": self.buffers, "counter": self.counters}
        for entry in self.layout.entries:
            parent, _, leaf = entry.name.rpartition(".")
            owner = self.module.get_submodule(parent)
            view = _view(flat[entry.kind], entry.place, entry.shape)
            view.copy_(getattr(owner, leaf).detach())
            if entry.kind == "param":
                parameter = nn.Parameter(view)
                parameter.grad = _view(self.grads, entry.place, entry.shape)
                setattr(owner, leaf, parameter)
            else:
                owner._buffers[leaf] = view

    def _keep_features(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features = inputs[0]

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the classifier's input."""
        with torch.autocast(self.device.type, self._half, enabled=self._half is not None):
            logits: Tensor = self._forward(images)
        if self._features is None:
            raise UserError(f"the network does not use its classifier layer '{self.layout.classifier}'")
        features, self._features = self._features, None
        return logits.float(), features.float()

    def load(self, model: Model) -> None:
        for here, there in self._both(self.params, model.params):
            here.copy_(there)
        self.buffers.copy_(torch.from_numpy(model.buffers))
        self.counters.copy_(torch.from_numpy(model.counters))

    def read_into(self, model: Model) -> None:
        """Copy the state out, every tensor in its natural order."""
        for here, there in self._both(self.params, model.params):
            there.copy_(here)
        torch.from_numpy(model.buffers).copy_(self.buffers)
        torch.from_numpy(model.counters).copy_(self.counters)

    def _both(self, flat: Tensor, values: Vector) -> Iterator[tuple[Tensor, Tensor]]:
        """What belongs together in a tensor beside `params` and in a vector of natural order, piece by piece."""
        natural = torch.from_numpy(values)
        for place, shape in self._pieces:
            yield _view(flat, place, shape), natural[place].view(shape)

    def read(self) -> Model:
        model = empty_model(self.layout)
        self.read_into(model)
        return model

    def vector(self, values: Vector) -> Tensor:
        """A vector of parameters' length in the order in which `params` lie in memory."""
        flat = torch.empty_like(self.params)
        for here, there in self._both(flat, values):
            here.copy_(there)
        return flat

    def values(self, flat: Tensor) -> Vector:
        """The way back: a tensor beside `params`, each layer in its natural order."""
        values = np.empty(len(flat), dtype=np.float32)
        for here, there in self._both(flat, values):
            there.copy_(here)
        return values


def layout_of(module: nn.Module, classifier: str) -> Layout:
    """The order of a module's tensors: parameters, floating buffers and counters each counted from zero."""
    params = dict(module.named_parameters())
    shared = dict(module.named_parameters(remove_duplicate=False)).keys() - params.keys()
    if shared:
        raise UserError(f"the network uses one parameter in two layers ({min(shared)}): that is not supported")
    entries, ends = [], {"param": 0, "buffer": 0, "counter": 0}
    for name, tensor in module.state_dict().items():
        kind: Literal["param", "buffer", "counter"] = (
            "param" if name in params else "buffer" if tensor.is_floating_point() else "counter"
        )
        entry = Entry(name, kind, tuple(tensor.shape), ends[kind], str(tensor.dtype).removeprefix("torch."))
        ends[kind] += entry.size
        entries.append(entry)
    if not any(entry.name.startswith(f"{classifier}.") for entry in entries):
        raise UserError(f"the network has no layer '{classifier}' to take as its classifier")
    return Layout(tuple(entries), classifier)


def empty_model(layout: Layout) -> Model:
    lengths = {kind: layout.length(kind) for kind in ("param", "buffer", "counter")}
    floats = np.empty(lengths["param"], np.float32), np.empty(lengths["buffer"], np.float32)
    return Model(*floats, np.empty(lengths["counter"], np.int64), layout)


def _view(flat: Tensor, place: slice, shape: tuple[int, ...]) -> Tensor:
    """A tensor's place in the flat one; images' kernels with the channels last, as the convolutions want them."""
    piece = flat[place]
    if len(shape) != 4:
        return piece.view(shape)
    out, channels, height, width = shape
    return piece.view(out, height, width, channels).permute(0, 3, 1, 2)


def _pieces(entries: Sequence[Entry]) -> list[tuple[slice, tuple[int, ...]]]:
    """The parameters as few pieces: kernels that lie otherwise in natural order, and all that is between them."""
    pieces: list[tuple[slice, tuple[int, ...]]] = []
    for entry in entries:
        kernel = len(entry.shape) == 4 and entry.shape[1] > 1 and entry.shape[2:] != (1, 1)
        if pieces and not kernel and len(pieces[-1][1]) == 1:
            start, stop = pieces.pop()[0].start, entry.place.stop
        else:
            start, stop = entry.place.start, entry.place.stop
        pieces.append((slice(start, stop), entry.shape if kernel else (stop - start,)))
    return pieces


# ---------------------------------------------------------------------------------------------------- the loop


@dataclass(frozen=True, eq=False)
class Examples:
    """Images and targets as the training loop reads them."""

    images: NDArray[np.uint8]  # (n, height, width)
    targets: NDArray[np.float32]  # (n, classes)
    mean: float = 0.5
    std: float = 0.25
    groups: NDArray[np.int8] | None = None  # (n,), 0 or 1, below zero where it is not known

    def batch(self, rows: Rows, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
        pixels, targets = self._gathered(rows, device)
        images = pixels.unsqueeze(1).float().sub_(255 * self.mean).div_(255 * self.std)
        return images.contiguous(memory_format=torch.channels_last), targets

    def _gathered(self, rows: Rows, device: torch.device) -> Sequence[Tensor]:
        """From the device where everything lies there; else from here, pinned, so that a GPU need not wait for it."""
        if device != CPU and (kept := self._kept_on(device)):
            return [part[torch.from_numpy(rows).to(device)] for part in kept]
        parts = [torch.from_numpy(array[rows]) for array in (self.images, self.targets)]
        if device.type == "cuda":
            parts = [part.pin_memory() for part in parts]
        return [part.to(device, non_blocking=True) for part in parts]

    @cached_property
    def _kept(self) -> dict[torch.device, Sequence[Tensor]]:
        return {}

    def _kept_on(self, device: torch.device) -> Sequence[Tensor]:
        """Images and targets, once for all, if there is room for them."""
        if device not in self._kept:
            free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else math.inf
            arrays = (self.images, self.targets) if self.images.nbytes <= RESIDENT * free else ()
            self._kept[device] = [torch.tensor(np.asarray(array), device=device) for array in arrays]
        return self._kept[device]


def batches(rows: Rows, size: int, rng: np.random.Generator) -> Iterator[Rows]:
    """One epoch in random order; the last batch may be smaller, but a single image is dropped for batch norm's sake."""
    order = rng.permutation(rows)
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        if len(batch) > 1:
            yield batch


def steps_per_epoch(images: int, batch_size: int) -> int:
    """How many batches `batches` gives."""
    full, rest = divmod(images, batch_size)
    return full * (batch_size > 1) + (rest > 1)


def fit(
    network: Network,
    examples: Examples,
    rows: Rows,
    training: Training,
    correction: Correction,
    seed: int,
    loss: Loss,
    optimizer: Optimizer,
    effort: float = 1.0,
) -> tuple[int, float]:
    """Train the network in place; returns optimiser steps taken and the mean loss."""
    epoch = steps_per_epoch(len(rows), training.batch_size)
    if not epoch:  # or the loop below would never end
        raise UserError(
            f"{len(rows)} image(s) in batches of {training.batch_size}: too few for a training step, give 2"
        )
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)  # for augmentation
    received = network.params.clone() if correction.pull else None
    linear, shift, drift = (
        None if v is None else network.vector(v) for v in (correction.linear, correction.shift, correction.drift)
    )
    full = training.steps or training.epochs * epoch
    limit = max(1, math.floor(effort * full + 0.5))
    steps, total = 0, torch.zeros((), device=network.device)
    scaler = torch.amp.GradScaler(network.device.type, enabled=training.amp == "fp16")  # else it does nothing
    network.module.train()
    while steps < limit:
        for batch in batches(rows, training.batch_size, rng):
            images, targets = examples.batch(batch, network.device)
            if training.augment:
                images = augment(images, generator)

            total += gradient(network, images, targets, loss, correction.penalty, scaler)
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
            scaler.step(optimizer)  # type: ignore[arg-type]
            scaler.update()
            if drift is not None:
                network.params.sub_(drift, alpha=training.lr)

            steps += 1
            if steps == limit:
                break
    return steps, float(total) / steps


def gradient(
    network: Network,
    images: Tensor,
    targets: Tensor,
    loss: Loss,
    penalty: Callable[[Tensor, Tensor], Tensor] | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> Tensor:
    """The loss of one batch, its gradient left in `network.grads`: the only place where client data are derived."""
    network.grads.zero_()
    logits, features = network(images)
    value = loss(logits, targets)
    if penalty is not None:
        value = value + penalty(images, features)
    (value if scaler is None else scaler.scale(value)).backward()  # type: ignore[no-untyped-call]
    return value.detach()


def make_optimizer(network: Network, training: Training) -> Optimizer:
    settings = (network.params, network.grads, training.lr, training.weight_decay)
    return SGD(*settings, momentum=training.momentum) if training.optimizer == "sgd" else Adam(*settings)


@torch.no_grad()
def logits_of(network: Network, examples: Examples, rows: Rows, batch_size: int = 256) -> Tensor:
    """In evaluation mode; the batches are fixed, so that the bits do not depend on who computes them."""
    network.module.eval()
    parts = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    return torch.cat([network(examples.batch(part, network.device)[0])[0] for part in parts]).cpu()


def predict(network: Network, examples: Examples, rows: Rows) -> NDArray[np.float32]:
    """Probabilities of the findings."""
    scores: NDArray[np.float32] = torch.sigmoid(logits_of(network, examples, rows)).numpy()
    return scores


# ---------------------------------------------------------------------------------------------------- the client


@dataclass(eq=False)
class Trainer:
    """A client's bench: a network, the examples, and each client's rows. One a process, used by all its clients."""

    build: Callable[[], tuple[nn.Module, str]]  # a fresh module and the name of its classifier
    examples: Examples
    shards: Sequence[Rows]  # by client
    training: Training
    local: Local
    loss: Loss = nn.functional.binary_cross_entropy_with_logits
    asks: tuple[Asked, ...] = ()  # what the weighting or the server wants to know of every client

    @property
    def sends(self) -> dict[str, Extent]:
        return beside(self.local, self.asks)

    def __post_init__(self) -> None:
        keep_freed()
        self.solver = Solver(self.training.optimizer, self.training.lr, self.training.momentum)
        self.local.check(self.solver)
        self.network = Network(*self.build(), self.training)
        self._references: list[Network] = []  # made when a rule first asks for them

    def smoothed_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        smoothing = self.training.label_smoothing
        return self.loss(logits, targets * (1 - smoothing) + smoothing / 2 if smoothing else targets)

    def reference(self, position: int) -> Network:
        """A network beside the one in training."""
        while len(self._references) <= position:
            self._references.append(Network(*self.build(), self.training))
        return self._references[position]

    def work(self, job: Job, memory: Memory, into: Model | None = None) -> tuple[Update, Memory]:
        """One client's part of a round: begin, fit, end. The trained state is written to `into`, if given."""
        client = _Client(self, job, memory)
        rows = self.shards[job.client]
        with torch.random.fork_rng(devices=[]), one_thread():
            _seed(job.seed, self.network.device)  # dropout and the like draw from the global generator
            correction = self.local.begin(job, memory, client)
            self.network.load(self.local.start(job, memory))
            optimizer = make_optimizer(self.network, self.training)
            if self.training.persist_optimizer:
                _restore(optimizer, self.network, memory)
            settings = (self.training, correction, job.seed, self.smoothed_loss, optimizer, job.effort)
            steps, loss = fit(self.network, self.examples, rows, *settings)
            model = into or empty_model(self.network.layout)
            self.network.read_into(model)
            update = Update(job.client, model, len(rows), steps, {"loss": loss})
            extra, remembered = self.local.end(job, update, memory, client)
            extra = {**extra, **{name: client.answer(name, model) for name in self.asks}}
            if self.training.persist_optimizer:
                remembered |= _moments(optimizer, self.network)
        finite = all(np.isfinite(vector).all() for vector in (model.params, model.buffers, *remembered.values()))
        # a failed round must not spoil the client's next one
        return replace(update, extra=extra), remembered if finite else memory


class _Client:
    """What a local rule may ask (see `core.Client`), answered by the bench it runs on."""

    def __init__(self, trainer: Trainer, job: Job, memory: Memory) -> None:
        self.solver = trainer.solver
        self._trainer, self._job, self._memory, self._asked = trainer, job, memory, 0

    def full_gradient(self) -> Vector:
        trainer, rows = self._trainer, self._trainer.shards[self._job.client]
        network = trainer.reference(0)
        network.load(self._job.model)
        network.module.train()
        total, seen = torch.zeros_like(network.grads), 0
        for batch in batches(rows, trainer.training.batch_size, np.random.default_rng(self._job.seed)):
            gradient(network, *trainer.examples.batch(batch, network.device), trainer.smoothed_loss)
            total.add_(network.grads, alpha=len(batch))
            seen += len(batch)
        return network.values(total / seen)

    def trained(self, start: Model, correction: Correction) -> Model:
        trainer, network = self._trainer, self._trainer.reference(0)
        network.load(start)
        optimizer = make_optimizer(network, trainer.training)
        settings = (trainer.training, correction, self._job.seed, trainer.smoothed_loss, optimizer, self._job.effort)
        fit(network, trainer.examples, trainer.shards[self._job.client], *settings)
        return network.read()

    def answer(self, question: Asked, trained: Model) -> Vector:
        """What the weighting or the server wants to know (see `core.ASKED`)."""
        rows, examples = self._trainer.shards[self._job.client], self._trainer.examples
        targets = examples.targets[rows]
        if question == "gradient":
            return self.full_gradient()
        if question == "held":
            return self._memory.get(self._trainer.local.held, np.zeros_like(trained.params))
        if question == "labels":
            return np.asarray(targets.sum(axis=0))
        network = self._trainer.reference(0)
        network.load(trained if question == "accuracy" else self._job.model)
        logits = logits_of(network, examples, rows)
        if question == "loss":
            return np.array([self._trainer.smoothed_loss(logits, torch.from_numpy(targets))], np.float32)
        if question == "accuracy":
            return np.array([np.mean((logits.numpy() >= 0) == (targets >= 0.5))], np.float32)
        return group_counts(logits.numpy(), targets, None if examples.groups is None else examples.groups[rows])

    def features_of(self, model: Model) -> Callable[[Tensor], Tensor]:
        network = self._trainer.reference(self._asked)
        self._asked += 1
        network.load(model)
        network.module.eval()

        @torch.no_grad()
        def features(images: Tensor) -> Tensor:
            return network(images)[1]

        return features


def group_counts(logits: Vector, targets: Vector, groups: NDArray[np.int8] | None) -> Vector:
    """The counts of `core.GROUP_COUNTS`. A finding is called where its score is among the highest, as many as have it.

    At a score of one half next to nobody is called positive while findings are rare, and both groups look alike.
    """
    positive = targets >= 0.5
    share = positive.mean(axis=0)
    limit = [np.quantile(column, 1 - p, method="higher") for column, p in zip(logits.T, share, strict=True)]
    called = (logits >= limit) & (share > 0)
    member = [np.zeros(len(targets), bool) if groups is None else groups == group for group in (0, 1)]
    counts = [(positive & of[:, None]).sum(axis=0) for of in member]
    found = [(positive & called & of[:, None]).sum(axis=0) for of in member]
    right = [called.size, (called == positive).sum()]
    return np.concatenate([*counts, *found, right]).astype(np.float32)


@dataclass(eq=False)
class ServerImages:
    """Labelled images at the server (see `core.Proxy`)."""

    build: Callable[[], tuple[nn.Module, str]]
    examples: Examples
    rows: Rows
    batch_size: int
    loss_of: Loss = nn.functional.binary_cross_entropy_with_logits

    @cached_property
    def network(self) -> Network:
        return Network(*self.build())

    def loss(self, model: Model) -> float:
        self.network.load(model)
        with one_thread():
            logits = logits_of(self.network, self.examples, self.rows)
            return float(self.loss_of(logits, torch.from_numpy(self.examples.targets[self.rows])))

    def gradients(self, seed: int) -> Iterator[Callable[[Vector], Vector]]:
        for batch in batches(self.rows, self.batch_size, np.random.default_rng(seed)):
            yield partial(self._gradient, batch)

    def _gradient(self, batch: Rows, params: Vector) -> Vector:
        network = self.network
        network.params.copy_(network.vector(params))
        network.module.train()
        with one_thread(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # for dropout and the like
            gradient(network, *self.examples.batch(batch), self.loss_of)
        return network.values(network.grads)


@contextmanager
def one_thread() -> Iterator[None]:
    """Bits depend on the number of threads, and many are slow under load: all training and testing is done with one."""
    before = torch.get_num_threads()
    if before == 1:  # setting it costs as much as a small layer
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _seed(seed: int, device: torch.device) -> None:
    """As `torch.manual_seed`, which also writes down where it was called from, for GPUs that may not be there."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def memory_of(local: Local, training: Training) -> dict[str, Extent]:
    """What a client keeps between rounds: for its method, and for its optimiser if that is to persist."""
    moments: dict[str, Extent] = {}
    if training.persist_optimizer and training.optimizer == "adam":
        moments = {"optimizer.exp_avg": "params", "optimizer.exp_avg_sq": "params", "optimizer.step": "number"}
    elif training.persist_optimizer and training.momentum:
        moments = {"optimizer.momentum_buffer": "params"}
    return {**local.keeps, **moments}


def _moments(optimizer: Optimizer, network: Network) -> Memory:
    return {
        f"optimizer.{key}": network.values(value) if value.ndim else np.array([float(value)], np.float32)
        for key, value in optimizer.state.items()
    }


def _restore(optimizer: Optimizer, network: Network, memory: Memory) -> None:
    moments = {key.removeprefix("optimizer."): v for key, v in memory.items() if key.startswith("optimizer.")}
    optimizer.state = {
        key: torch.tensor(float(value[0]), device=network.device) if key == "step" else network.vector(value)
        for key, value in moments.items()
    }

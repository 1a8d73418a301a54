"""The passage between a torch network and a flat `Model`.

Parameters, gradients and batch-norm buffers are views of flat tensors, so that clipping,
corrections and the optimiser are single operations, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from feddraw.core import Entry, Heads, Kind, Layout, Model, Vector, empty_model, in_layer
from feddraw.core.model import head_names
from feddraw.errors import UserError
from feddraw.training.reproducibility import compute_exactly
from feddraw.training.settings import Training

CPU = torch.device("cpu")
Build = Callable[..., tuple[nn.Module, Heads]]  # makes a fresh module and names its classifier
HALF_PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


@runtime_checkable
class PartlyFrozenModule(Protocol):
    """A network with a frozen part, whose tensors need not be in it."""

    def frozen_arrays(self) -> dict[str, NDArray[Any]]: ...

    def load_frozen(self, name: str, values: NDArray[Any]) -> None: ...


class Network:
    """A torch module whose state lies in flat tensors: `params`, `grads`, `buffers`, `counters`.

    A frozen parameter stays where it is in the module: neither optimiser, gradient nor `load`
    touches it.
    """

    def __init__(
        self, module: nn.Module, classifier: Heads, training: Training | None = None
    ) -> None:
        training = training or Training()
        self.device = training.available_device()
        compute_exactly(self.device, training.tf32)
        self.module = module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.layout = layout_of_module(module, classifier)
        self.params = torch.empty(self.layout.length("param"), device=self.device)
        self.grads = torch.zeros_like(self.params)
        self.buffers = torch.empty(self.layout.length("buffer"), device=self.device)
        self.counters = torch.empty(
            self.layout.length("counter"), dtype=torch.int64, device=self.device
        )
        self._half = HALF_PRECISIONS.get(training.amp)
        self._blocks = _blocks([entry for entry in self.layout.entries if entry.kind == "param"])
        self._features: dict[nn.Module, Tensor] = {}
        # (a buffer of another type than its flat tensor, its part of that tensor)
        self._apart: list[tuple[Tensor, Tensor]] = []
        self._adopt()
        for head in self.layout.heads:
            module.get_submodule(head).register_forward_pre_hook(self._keep_features)
        self._forward = torch.compile(self.module) if training.compile else self.module

    def _adopt(self) -> None:
        """Make every tensor of the module a view of one of ours, keeping its values.

        A buffer of another type, such as a mask of truth values, stays in the module: the network
        needs it as it is. Its values are copied in `load` and `read_into`.
        """
        for entry in self.layout.entries:
            parent, _, leaf = entry.name.rpartition(".")
            owner = self.module.get_submodule(parent)
            tensor = getattr(owner, leaf).detach()
            if entry.kind == "param":
                view = _tensor_view(self.params, entry.span, entry.shape)
                view.copy_(tensor)
                parameter = nn.Parameter(view)
                parameter.grad = _tensor_view(self.grads, entry.span, entry.shape)
                setattr(owner, leaf, parameter)
                continue
            flat = self.buffers if entry.kind == "buffer" else self.counters
            view = flat[entry.span].view(entry.shape)  # buffers are copied as they lie
            view.copy_(tensor)
            if tensor.dtype == flat.dtype:
                owner._buffers[leaf] = view
            else:
                self._apart.append((tensor, view))

    def _keep_features(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features[head] = inputs[0]

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the classifier's input."""
        with torch.autocast(self.device.type, self._half, enabled=self._half is not None):
            logits = scores_in_output(self._forward(images))
        return logits.float(), self._classifier_input().float()

    def _classifier_input(self) -> Tensor:
        """The input of the classifier in the last forward pass; where its layers have different
        ones, these side by side.
        """
        if len(self._features) < len(self.layout.heads):
            unused = next(
                head
                for head in self.layout.heads
                if self.module.get_submodule(head) not in self._features
            )
            raise UserError(f"the network does not use its classifier layer '{unused}'")
        inputs = list(self._features.values())
        self._features = {}
        if all(features is inputs[0] for features in inputs):
            return inputs[0]
        return torch.cat([features.flatten(1) for features in inputs], dim=1)

    def load(self, model: Model) -> None:
        """Take over a model's parameters, buffers and counters."""
        for here, there in self._both(self.params, model.params):
            here.copy_(there)
        self.buffers.copy_(torch.from_numpy(model.buffers))
        self.counters.copy_(torch.from_numpy(model.counters))
        for buffer, view in self._apart:
            buffer.copy_(view)

    def read_into(self, model: Model) -> None:
        """Copy the state out, every tensor in its natural order."""
        for here, there in self._both(self.params, model.params):
            there.copy_(here)
        for buffer, view in self._apart:
            view.copy_(buffer)
        torch.from_numpy(model.buffers).copy_(self.buffers)
        torch.from_numpy(model.counters).copy_(self.counters)

    def _both(self, flat: Tensor, values: Vector) -> Iterator[tuple[Tensor, Tensor]]:
        """What belongs together in a tensor beside `params` and in a vector of natural order, piece
        by piece.
        """
        natural = torch.from_numpy(values)
        for span, shape in self._blocks:
            yield _tensor_view(flat, span, shape), natural[span].view(shape)

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


def scores_in_output(output: Any) -> Tensor:
    """What a network gives for its images: the scores, or the first of several things, or what it
    calls `logits`.
    """
    while isinstance(output, tuple | list) and output:
        output = output[0]
    if isinstance(output, Mapping):
        scores = output.get("logits")
    else:
        scores = getattr(output, "logits", output)
    if not isinstance(scores, Tensor):
        raise UserError(
            f"the network gives {type(output).__name__}, not a tensor of one score per image and"
            " finding"
        )
    return scores


def layout_of_module(module: nn.Module, classifier: Heads) -> Layout:
    """What a module's tensors are, as the module itself says."""
    params = dict(module.named_parameters())
    if shared := dict(module.named_parameters(remove_duplicate=False)).keys() - params.keys():
        raise UserError(
            f"the network uses one parameter in two layers ({min(shared)}): that is not supported"
        )
    frozen = {
        name: p.detach().cpu().numpy().copy() for name, p in params.items() if not p.requires_grad
    }
    if isinstance(module, PartlyFrozenModule):
        frozen |= module.frozen_arrays()
    tensors: list[tuple[str, Kind, tuple[int, ...], str]] = []
    for name, tensor in module.state_dict().items():
        if tensor.is_complex():
            raise UserError(f"the network's '{name}' holds complex numbers: that is not supported")
        if name not in frozen:
            kind: Kind = "buffer" if tensor.is_floating_point() else "counter"
            dtype = str(tensor.dtype).removeprefix("torch.")
            tensors.append((name, "param" if name in params else kind, tuple(tensor.shape), dtype))
    for head in head_names(classifier):
        if not any(in_layer(name, head) and kind == "param" for name, kind, *_ in tensors):
            if any(in_layer(name, head) for name in frozen):
                raise UserError(
                    f"the classifier '{head}' is frozen (requires_grad is False): nobody would"
                    " train it"
                )
            raise UserError(f"the network has no layer '{head}' to take as its classifier")
    return replace(Layout.of(tensors, classifier), frozen=frozen)


def _tensor_view(flat: Tensor, span: slice, shape: tuple[int, ...]) -> Tensor:
    """A tensor's view of the flat one; images' kernels with the channels last, as the convolutions
    want them.
    """
    values = flat[span]
    if len(shape) != 4:
        return values.view(shape)
    out, channels, height, width = shape
    return values.view(out, height, width, channels).permute(0, 3, 1, 2)


def _blocks(entries: Sequence[Entry]) -> list[tuple[slice, tuple[int, ...]]]:
    """The parameters as few blocks: kernels with their channels last, and all that is between two
    kernels.
    """
    blocks: list[tuple[slice, tuple[int, ...]]] = []
    for entry in entries:
        kernel = len(entry.shape) == 4 and entry.shape[1] > 1 and entry.shape[2:] != (1, 1)
        if blocks and not kernel and len(blocks[-1][1]) == 1:
            start = blocks.pop()[0].start
            stop = entry.span.stop
        else:
            start = entry.span.start
            stop = entry.span.stop
        blocks.append((slice(start, stop), entry.shape if kernel else (stop - start,)))
    return blocks


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode, and the random numbers as they were."""
    modes = {layer: layer.training for layer in module.modules()}
    module.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for layer, mode in modes.items():
            layer.training = mode

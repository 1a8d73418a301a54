"""The passage between a torch network and a flat `Model`.

Parameters, gradients and batch-norm buffers are views of flat tensors, so that clipping,
corrections and the optimiser are single operations, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from feddraw.core import Entry, Heads, Kind, Layout, Model, Vector, empty_model, in_layer
from feddraw.core.model import head_names
from feddraw.errors import UserError
from feddraw.training.reproducibility import compute_exactly
from feddraw.training.settings import Training

CPU = torch.device("cpu")
Build = Callable[..., tuple[nn.Module, Heads]]  # makes a fresh module and names its classifier
HALF_PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Network:
    """A torch module whose state lies in flat tensors: `params`, `grads`, `buffers`, `counters`.

    A frozen parameter stays where it is in the module: neither optimiser, gradient nor `load`
    touches it.
    """

    def __init__(
        self, module: nn.Module, classifier: Heads, training: Training | None = None
    ) -> None:
        how = training or Training()
        self.device = how.available_device()
        compute_exactly(self.device, how.tf32)
        self.module = module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.layout = layout_of_module(module, classifier)
        self.params = torch.empty(self.layout.length("param"), device=self.device)
        self.grads = torch.zeros_like(self.params)
        self.buffers = torch.empty(self.layout.length("buffer"), device=self.device)
        self.counters = torch.empty(
            self.layout.length("counter"), dtype=torch.int64, device=self.device
        )
        self._half = HALF_PRECISIONS.get(how.amp)
        self._blocks = _network_blocks(
            [entry for entry in self.layout.entries if entry.kind == "param"]
        )
        self._features: dict[nn.Module, Tensor] = {}
        self._adopt()
        for head in self.layout.heads:
            module.get_submodule(head).register_forward_pre_hook(self._keep_features)
        self._forward = torch.compile(self.module) if how.compile else self.module

    def _adopt(self) -> None:
        """Make every tensor of the module a view of one of ours, keeping its values."""
        flat = {"param": self.params, "buffer": self.buffers, "counter": self.counters}
        for entry in self.layout.entries:
            parent, _, leaf = entry.name.rpartition(".")
            owner = self.module.get_submodule(parent)
            whole = flat[entry.kind]
            kernel = entry.kind == "param"  # buffers are copied as they lie
            view = (
                _tensor_view(whole, entry.span, entry.shape)
                if kernel
                else whole[entry.span].view(entry.shape)
            )
            view.copy_(getattr(owner, leaf).detach())
            if entry.kind == "param":
                parameter = nn.Parameter(view)
                parameter.grad = _tensor_view(self.grads, entry.span, entry.shape)
                setattr(owner, leaf, parameter)
            else:
                owner._buffers[leaf] = view

    def _keep_features(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features[head] = inputs[0]

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the classifier's input."""
        with torch.autocast(self.device.type, self._half, enabled=self._half is not None):
            logits = scores_in_output(self._forward(images))
        if len(self._features) < len(self.layout.heads):
            heads = [self.module.get_submodule(head) for head in self.layout.heads]
            unused = [
                name
                for name, head in zip(self.layout.heads, heads, strict=True)
                if head not in self._features
            ]
            raise UserError(f"the network does not use its classifier layer '{unused[0]}'")
        kept, self._features = list(self._features.values()), {}
        inputs = (
            kept[:1] if all(one is kept[0] for one in kept) else [one.flatten(1) for one in kept]
        )
        return logits.float(), (inputs[0] if len(inputs) == 1 else torch.cat(inputs, dim=1)).float()

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


def scores_in_output(given: Any) -> Tensor:
    """What a network gives for its images: the scores, or the first of several things, or what it
    calls `logits`.
    """
    while isinstance(given, tuple | list) and given:
        given = given[0]
    found = given.get("logits") if isinstance(given, Mapping) else getattr(given, "logits", given)
    if not isinstance(found, Tensor):
        raise UserError(
            f"the network gives {type(given).__name__}, not a tensor of one score per image and"
            " finding"
        )
    return found


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
    tensors: list[tuple[str, Kind, tuple[int, ...], str]] = []
    for name, tensor in module.state_dict().items():
        kind: Kind = (
            "param" if name in params else "buffer" if tensor.is_floating_point() else "counter"
        )
        if name not in frozen:
            tensors.append(
                (name, kind, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            )
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


def _network_blocks(entries: Sequence[Entry]) -> list[tuple[slice, tuple[int, ...]]]:
    """The parameters as few blocks: kernels with their channels last, and all that is between two
    kernels.
    """
    blocks: list[tuple[slice, tuple[int, ...]]] = []
    for entry in entries:
        kernel = len(entry.shape) == 4 and entry.shape[1] > 1 and entry.shape[2:] != (1, 1)
        if blocks and not kernel and len(blocks[-1][1]) == 1:
            start, stop = blocks.pop()[0].start, entry.span.stop
        else:
            start, stop = entry.span.start, entry.span.stop
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

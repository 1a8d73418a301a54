"""Where a network can be cut in two at a layer: what comes before it is frozen, the layer and what
follows are trained.

A cut is found by one pass of an image of noise, with the gradient: nothing behind the cut may
depend on the image but through the layer's input. What is made of a network and its cut is in
`partly_frozen`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from feddraw.core import Heads, in_layer
from feddraw.core.model import head_names
from feddraw.errors import UserError, in_one_line, unknown
from feddraw.training.network import evaluation_mode, scores_in_output
from feddraw.training.reproducibility import one_thread

BODY = "body"  # as a cut: all but the classifier
NOISE_SEED = 0

Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # of a call, by place and by name


@dataclass(frozen=True, eq=False)
class Cut:
    """Where a network is cut, and what lies before the cut."""

    layers: tuple[str, ...]  # they get the features: the named layer, or those of the classifier
    frozen_layers: Mapping[str, list[Any]]  # each with what its calls gave for the image of noise
    frozen_tensors: frozenset[str]  # by their names in the state dict
    shape: tuple[int, ...]  # of one image's features
    at_the_end: bool  # the network's scores are what the one layer at the cut gives
    overwritten: bool  # the trained part writes into its input


class CannotCut(Exception):
    """A network cannot be cut at a layer; the message is the reason."""


def find_cut(
    module: nn.Module,
    classifier: Heads,
    layer: str,
    side: int,
    projection: bool = False,
    channels: int = 1,
) -> Cut:
    """Where a network is cut; refuses a layer that is not there, or within a block.

    `side` is that of an image in pixels, `channels` 1 for grey ones and 3 for colour; with
    `projection` the classifier has layers of its own before it, which are trained.
    """
    layers = _layers_at_cut(module, classifier, layer, projection)
    noise = noise_image(side, channels=channels)
    try:
        return _try_cut(module, layers, noise)
    except CannotCut as reason:
        possible = _parent_to_cut_at(module, layers[0], noise)
        hint = f"use model.frozen = {possible}" if possible else "choose another layer"
        raise UserError(f"the network cannot be cut at '{layers[0]}': {reason}; {hint}") from reason


def _layers_at_cut(
    module: nn.Module, classifier: Heads, layer: str, projection: bool
) -> tuple[str, ...]:
    if layer == BODY:
        heads = head_names(classifier)
        return (heads[0].rpartition(".")[0],) if projection else heads
    names = [name for name, _ in module.named_modules() if name]
    if layer in names:
        return (layer,)
    same_end = [name for name in names if name.rpartition(".")[2] == layer.rpartition(".")[2]]
    if same_end:
        raise UserError(
            f"no '{layer}' among the layers (model.frozen): did you mean {', '.join(same_end[:3])}?"
        )
    near = get_close_matches(layer, names, n=1, cutoff=0.5)
    # of hundreds of layers without a near one, the outer ones say how the network is made
    shown = near or [name for name in names if name.count(".") <= 1]
    raise unknown("layers (model.frozen)", layer, {BODY, *shown})


def _parent_to_cut_at(module: nn.Module, layer: str, noise: Tensor) -> str | None:
    """The smallest block around a layer before which the network can be cut."""
    for parent in _parents(layer):
        try:
            _try_cut(module, (parent,), noise)
        except CannotCut:
            continue
        return parent
    return None


def _parents(layer: str) -> Iterator[str]:
    while layer := layer.rpartition(".")[0]:
        yield layer


def noise_image(side: int, images: int = 1, seed: int = NOISE_SEED, channels: int = 1) -> Tensor:
    """Images of noise, (images, channels, side, side), the same everywhere."""
    pixels = np.random.default_rng(seed).normal(size=(images, channels, side, side))
    return torch.from_numpy(pixels.astype(np.float32))


# -------------------------------------------------------------------------------- one pass of noise


def _try_cut(module: nn.Module, layers: tuple[str, ...], noise: Tensor) -> Cut:
    """The cut at these layers; raises `CannotCut`."""
    observed = _ObservedPass(module, layers)
    try:
        with one_thread(), evaluation_mode(module), _gradients_of_all_parameters(module):
            observed.run(noise)
            _check_inputs_at_cut(observed)
            return _cut_in_pass(observed)
    except (CannotCut, UserError):
        raise
    except Exception as error:  # the network's own code can fail in any way
        raise CannotCut(
            f"a pass of an image of {noise.shape[2]} × {noise.shape[3]} pixels failed"
            f" ({in_one_line(error)})"
        ) from error


@contextmanager
def _gradients_of_all_parameters(module: nn.Module) -> Iterator[None]:
    """With gradients of frozen parameters too, which tell where these are used."""
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(parameter.is_floating_point())
    try:
        with torch.enable_grad():
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


class _ObservedPass:
    """One pass of an image, and what was seen in it.

    The layers at the cut get their input without its history. So what the scores depend on is used
    behind the cut, and what the input depends on, before it.
    """

    def __init__(self, module: nn.Module, layers: tuple[str, ...]) -> None:
        self.module = module
        self.layers = layers  # at the cut
        self.image = torch.empty(0)
        self.scores = torch.empty(0)
        self.inputs: list[Tensor | None] = []  # by call of a layer at the cut, with their history
        self.features: Tensor | None = None  # the first tensor of these without its history
        self.output_at_cut: Any = None  # of the last of the layers there
        self.outputs_before: dict[str, list[Any]] = {}  # of calls that ended before the cut
        self.called_behind: set[str] = set()  # layers that were called once the cut was reached

    def run(self, image: Tensor) -> None:
        self.image = image.clone().requires_grad_()
        with self._hooks():
            # times 1, as a network may write into its input, which autograd refuses of a leaf
            self.scores = scores_in_output(self.module(self.image * 1))

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        hooks = []
        for name, layer in self.module.named_modules():
            if not name:
                continue
            if name in self.layers:
                hooks.append(layer.register_forward_pre_hook(self._cut_history, with_kwargs=True))
                hooks.append(layer.register_forward_hook(self._note_output_at_cut))
            else:
                hooks.append(layer.register_forward_pre_hook(partial(self._note_call, name)))
                hooks.append(layer.register_forward_hook(partial(self._note_output, name)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _cut_history(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        tensor = first_tensor(args, kwargs)
        self.inputs.append(tensor)
        if tensor is None:
            return None
        if self.features is None:
            self.features = tensor.detach().clone()
        return with_first_tensor(args, kwargs, self.features)

    def _note_output_at_cut(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        self.output_at_cut = output

    def _note_call(self, name: str, _: nn.Module, __: tuple[Any, ...]) -> None:
        if self.inputs:
            self.called_behind.add(name)

    def _note_output(self, name: str, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        if not self.inputs:
            copied = tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), output)
            self.outputs_before.setdefault(name, []).append(copied)


def _reached(output: Tensor, tensors: Mapping[str, Tensor]) -> set[str]:
    """Those of the tensors that an output depends on."""
    if not output.requires_grad:
        return set()
    known = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
    gradients = torch.autograd.grad(
        output.sum(), list(known.values()), allow_unused=True, retain_graph=True
    )
    return {name for name, gradient in zip(known, gradients, strict=True) if gradient is not None}


# -------------------------------------------------------------------------------- what a pass tells


def _check_inputs_at_cut(observed: _ObservedPass) -> None:
    """Refuse layers that do not have one input in a pass, with a row for each image."""
    calls = len(observed.inputs)
    if not calls:
        raise CannotCut("it is not called in a pass; is it a list of layers?")
    if calls != len(observed.layers):
        raise CannotCut(f"it is called {calls} times in a pass, not once")
    if observed.features is None:
        raise CannotCut("its first input is not a tensor")
    first, *others = [tensor for tensor in observed.inputs if tensor is not None]
    if any(tensor is not first for tensor in others):
        raise CannotCut("the classifier's layers have different inputs")
    if observed.features.shape[:1] != (1,):
        raise CannotCut("its input has no row of its own for each image")


def _cut_in_pass(observed: _ObservedPass) -> Cut:
    """What is frozen, if nothing of it is needed behind the cut."""
    features = observed.features
    assert features is not None
    params = dict(observed.module.named_parameters())
    input_at_cut = next(tensor for tensor in observed.inputs if tensor is not None)
    params_before = _reached(input_at_cut, params)
    params_behind = _reached(observed.scores, params)
    if _reached(observed.scores, {"image": observed.image}):
        raise CannotCut("the scores also depend on the image by a way around it")
    frozen_layers = _frozen_layers(observed)
    frozen_tensors = {
        name
        for name in observed.module.state_dict()
        if name in params_before or _in_one_of(name, frozen_layers)
    }
    if shared := params_behind & frozen_tensors:
        raise CannotCut(f"'{min(shared)}' is used before and behind it")
    if not params_before:
        raise CannotCut("there is nothing to freeze before it")
    return Cut(
        layers=observed.layers,
        frozen_layers=frozen_layers,
        frozen_tensors=frozenset(frozen_tensors),
        shape=tuple(features.shape[1:]),
        at_the_end=len(observed.layers) == 1 and observed.scores is observed.output_at_cut,
        # torch counts the writes into a tensor. A comparison of values would not do: an activation
        # that writes in place leaves the features of noise as they are where none is negative.
        overwritten=features._version > 0,
    )


def _frozen_layers(observed: _ObservedPass) -> dict[str, list[Any]]:
    """The outermost layers that end before the cut, with their outputs."""
    frozen = {}
    for name, outputs in observed.outputs_before.items():
        if any(parent in observed.outputs_before for parent in _parents(name)):
            continue  # it is frozen, or not, with the layer around it
        if not any(in_layer(called, name) for called in observed.called_behind):
            frozen[name] = outputs
        elif observed.module.get_submodule(name).state_dict():
            raise CannotCut(f"'{name}' is used before and behind it")
        # else it is an activation that is used everywhere: it stays
    return frozen


def _in_one_of(tensor: str, layers: Iterable[str]) -> bool:
    return any(in_layer(tensor, layer) for layer in layers)


# ----------------------------------------------------------------------------- arguments of a layer


def first_tensor(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The first argument of a call if that is a tensor; of named ones the first tensor."""
    if args:
        return args[0] if isinstance(args[0], Tensor) else None
    return next((value for value in kwargs.values() if isinstance(value, Tensor)), None)


def with_first_tensor(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], tensor: Tensor
) -> Arguments:
    """A call's arguments with another tensor in the place of the first."""
    if args:
        return (tensor, *args[1:]), dict(kwargs)
    name = next(key for key, value in kwargs.items() if isinstance(value, Tensor))
    return args, {**kwargs, name: tensor}

"""A network cut in two at a layer: what comes before it is frozen, the layer and what follows are
trained.

Where a network can be cut is found by one pass of an image of noise, with the gradient: nothing
behind the cut may depend on the image but through the layer's input. The frozen part is in
evaluation mode, so its batch-norm statistics stay as they are.

The trained part is the network itself with its frozen layers taken out. In their place stands what
they gave for the image of noise; the layer at the cut gets the features in place of its input. So
any network can be cut whose `forward` calls its layers, and every tensor keeps its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from feddraw.core import Heads, in_layer
from feddraw.core.model import head_names
from feddraw.errors import UserError, in_one_line, unknown
from feddraw.training.network import Build, evaluation_mode, scores_in_output
from feddraw.training.reproducibility import one_thread

BODY = "body"  # as a cut: all but the classifier
NOISE_SEED = 0
# Of the largest score: by how much the scores of a cut network may differ from those of the whole.
LARGEST_DIFFERENCE = 1e-4

Arrays = dict[str, NDArray[Any]]
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


class _Reached(Exception):
    """The frozen part has ended."""


# --------------------------------------------------------------------------------- finding the cut


def find_cut(
    module: nn.Module, classifier: Heads, layer: str, side: int, projection: bool = False
) -> Cut:
    """Where a network is cut; refuses a layer that is not there, or within a block.

    `side` is that of an image in pixels; with `projection` the classifier has layers of its own
    before it, which are trained.
    """
    layers = _layers_at_cut(module, classifier, layer, projection)
    cut = _try_cut(module, layers, side)
    if isinstance(cut, Cut):
        return cut
    possible = [
        parent
        for parent in _parents(layers[0])
        if isinstance(_try_cut(module, (parent,), side), Cut)
    ]
    hint = f"use model.frozen = {possible[0]}" if possible else "choose another layer"
    raise UserError(f"the network cannot be cut at '{layers[0]}': {cut}; {hint}")


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


def _parents(layer: str) -> Iterator[str]:
    while layer := layer.rpartition(".")[0]:
        yield layer


def noise_image(side: int, images: int = 1, seed: int = NOISE_SEED) -> Tensor:
    """Images of noise, (images, 1, side, side), the same everywhere."""
    pixels = np.random.default_rng(seed).normal(size=(images, 1, side, side))
    return torch.from_numpy(pixels.astype(np.float32))


def _try_cut(module: nn.Module, layers: tuple[str, ...], side: int) -> Cut | str:
    """The cut, or why there is none."""
    frozen_before = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    for parameter in frozen_before:  # or the gradient would not tell where it is used
        parameter.requires_grad_(parameter.is_floating_point())
    try:
        with one_thread(), evaluation_mode(module), torch.enable_grad():
            return _Trace(module, layers).run(noise_image(side))
    except UserError:
        raise
    except Exception as error:  # the network's own code can fail in any way
        return f"a pass of an image of {side} × {side} pixels failed ({in_one_line(error)})"
    finally:
        for parameter in frozen_before:
            parameter.requires_grad_(False)


class _Trace:
    """One pass of an image, in which the layers at the cut get their input without its history."""

    def __init__(self, module: nn.Module, layers: tuple[str, ...]) -> None:
        self._module = module
        self._layers = layers
        self._input: Tensor | None = None  # of the layers at the cut, with its history
        self._features = torch.empty(0)  # the same without
        self._problem = ""
        self._entries = 0  # calls of layers at the cut
        self._ended: dict[str, list[Any]] = {}  # by layer: what its calls before the cut gave
        self._later: set[str] = set()  # layers that were called behind the cut
        self._last: Any = None  # what the layer at the cut gave

    def run(self, image: Tensor) -> Cut | str:
        seen = image.clone().requires_grad_()
        with self._watched():
            scores = scores_in_output(self._module(seen * 1))  # a network may write into its input
        if not self._entries:
            return "it is not called in a pass; is it a list of layers?"
        if self._entries != len(self._layers):
            return f"it is called {self._entries} times in a pass, not once"
        if self._input is None or self._problem:
            return self._problem or "its first input is not a tensor"
        if self._features.shape[:1] != (1,):
            return "its input has no row of its own for each image"
        return self._judge(seen, scores)

    def _judge(self, image: Tensor, scores: Tensor) -> Cut | str:
        params = dict(self._module.named_parameters())
        assert self._input is not None
        before = _reached(self._input, params)
        behind = _reached(scores, params)
        if _reached(scores, {"image": image}):
            return "the scores also depend on the image by a way around it"
        outermost = [
            name
            for name in self._ended
            if not any(parent in self._ended for parent in _parents(name))
        ]
        frozen_layers: dict[str, list[Any]] = {}
        for name in outermost:
            layer = self._module.get_submodule(name)
            used_later = any(in_layer(later, name) for later in self._later)
            if used_later and not layer.state_dict():
                continue  # an activation that is used everywhere: it stays
            if used_later:
                return f"'{name}' is used before and behind it"
            frozen_layers[name] = self._ended[name]
        frozen = {
            name
            for name in self._module.state_dict()
            if name in before or any(in_layer(name, layer) for layer in frozen_layers)
        }
        if shared := sorted(behind & frozen):
            return f"'{shared[0]}' is used before and behind it"
        if not before:
            return "there is nothing to freeze before it"
        return Cut(
            layers=self._layers,
            frozen_layers=frozen_layers,
            frozen_tensors=frozenset(frozen),
            shape=tuple(self._features.shape[1:]),
            at_the_end=len(self._layers) == 1 and scores is self._last,
            overwritten=self._features._version > 0,
        )

    @contextmanager
    def _watched(self) -> Iterator[None]:
        hooks = []
        for name, layer in self._module.named_modules():
            if not name:
                continue
            hooks.append(layer.register_forward_hook(partial(self._leave, name)))
            if name in self._layers:
                hooks.append(layer.register_forward_pre_hook(self._enter, with_kwargs=True))
            else:
                hooks.append(layer.register_forward_pre_hook(partial(self._note, name)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _note(self, name: str, _: nn.Module, __: tuple[Any, ...]) -> None:
        if self._entries:
            self._later.add(name)

    def _enter(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        self._entries += 1
        tensor = first_tensor(args, kwargs)
        if tensor is None:
            return None
        if self._input is None:
            self._input = tensor
            self._features = tensor.detach().clone()
        elif tensor is not self._input:
            self._problem = "the classifier's layers have different inputs"
        return with_first_tensor(args, kwargs, self._features)

    def _leave(self, name: str, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        if name in self._layers:
            self._last = output
        if not self._entries:
            detached = tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), output)
            self._ended.setdefault(name, []).append(detached)


def _reached(output: Tensor, tensors: Mapping[str, Tensor]) -> set[str]:
    """Those of the tensors that an output depends on."""
    if not output.requires_grad:
        return set()
    known = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
    gradients = torch.autograd.grad(
        output.sum(), list(known.values()), allow_unused=True, retain_graph=True
    )
    return {name for name, gradient in zip(known, gradients, strict=True) if gradient is not None}


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


# ---------------------------------------------------------------------------------- the two parts


class PartlyFrozen(nn.Module):
    """A network of which a part is frozen: it takes images or, `from_features`, what comes out of
    that part.

    It shares the tensors and layers of the network, so that they have the same names here.
    """

    whole: nn.Module

    def __init__(self, whole: nn.Module, cut: Cut, side: int, *, from_features: bool) -> None:
        super().__init__()
        self._parameters = whole._parameters
        self._buffers = whole._buffers
        self._modules = whole._modules
        self._non_persistent_buffers_set = whole._non_persistent_buffers_set
        self.__dict__["whole"] = whole  # not as a layer, which would change all names
        self.cut = cut
        self.from_features = from_features
        self._taken_out: Arrays = {}  # tensors of frozen layers that are no longer in the network
        self._features = torch.empty(0)
        self._noise = noise_image(side)
        self._recorded: list[_Recorded] = []
        # Whether what stands for frozen layers has a row per image, as steps between the layers may
        # need; else one row, which costs less.
        self.row_per_image = False
        self._still: list[nn.Module] = []  # frozen layers, in evaluation mode whatever happens
        for name, parameter in whole.named_parameters():
            if name in cut.frozen_tensors:
                parameter.requires_grad_(False)
        if from_features:
            self._take_out_frozen_layers()
        else:
            self._still = [whole.get_submodule(name) for name in cut.frozen_layers]

    def _take_out_frozen_layers(self) -> None:
        state = self.whole.state_dict()
        for name in self.cut.frozen_tensors:
            if any(in_layer(name, layer) for layer in self.cut.frozen_layers):
                self._taken_out[name] = state[name].detach().cpu().numpy().copy()
        for name, outputs in self.cut.frozen_layers.items():
            parent, _, leaf = name.rpartition(".")
            layer = self.whole.get_submodule(name)
            self._recorded.append(_Recorded(layer, outputs))
            self.whole.get_submodule(parent)._modules[leaf] = self._recorded[-1]
        for name in self.cut.layers if not self.cut.at_the_end else ():
            layer = self.whole.get_submodule(name)
            layer.register_forward_pre_hook(self._give_features, with_kwargs=True)

    def _give_features(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments:
        return with_first_tensor(args, kwargs, self._features)

    def forward(self, inputs: Tensor) -> Any:
        """The scores of images or of features."""
        if not self.from_features:
            return self.whole(inputs)
        self._features = inputs.clone() if self.cut.overwritten else inputs
        if self.cut.at_the_end:
            return self.whole.get_submodule(self.cut.layers[0])(self._features)
        images = len(inputs)
        for layer in self._recorded:
            layer.rows = images if self.row_per_image else 1
        return self.whole(self._noise.expand(images, -1, -1, -1))

    def train(self, mode: bool = True) -> PartlyFrozen:
        super().train(mode)
        self.whole.training = mode
        for layer in self._still:
            layer.train(False)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PartlyFrozen:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._noise = fn(self._noise)
        return self

    def frozen_arrays(self) -> Arrays:
        """Every frozen tensor by its name, as it is now."""
        state = self.whole.state_dict()
        here = {
            name: tensor.detach().cpu().numpy().copy()
            for name, tensor in state.items()
            if name in self.cut.frozen_tensors
        }
        return here | self._taken_out

    def load_frozen(self, name: str, values: NDArray[Any]) -> None:
        """Another value for a frozen tensor."""
        if name in self._taken_out:
            self._taken_out[name] = values.reshape(self._taken_out[name].shape)
        else:
            with torch.no_grad():
                tensor = self.whole.state_dict()[name]
                tensor.copy_(torch.from_numpy(values).reshape(tensor.shape))


class _Recorded(nn.Module):
    """In the place of a frozen layer: gives what that gave for the image of noise, call by call.

    Of the layer itself the shapes and types are left, which a network's code may look at.
    """

    def __init__(self, layer: nn.Module, outputs: list[Any]) -> None:
        super().__init__()
        self.__dict__["shapes"] = layer.to("meta")  # not as a layer: its tensors are no longer here
        self.rows = 1
        self._outputs = outputs
        self._calls = 0

    def forward(self, *_: Any, **__: Any) -> Any:
        output = self._outputs[self._calls % len(self._outputs)]
        self._calls += 1
        return output if self.rows == 1 else tree_map_only(Tensor, self._repeated, output)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["shapes"], name)

    def _repeated(self, tensor: Tensor) -> Tensor:
        """The same row for every image, in the memory of one."""
        return tensor.expand(self.rows, *tensor.shape[1:]) if tensor.shape[:1] == (1,) else tensor

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Recorded:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._outputs = tree_map_only(Tensor, fn, self._outputs)
        return self


@dataclass(frozen=True, eq=False)
class _KnownCut:
    """A cut that was tried, and how the trained part has to run."""

    cut: Cut
    row_per_image: bool


# By the function that makes the network, with its arguments: a run makes its network several times,
# and trying takes longer.
_KNOWN: dict[str, _KnownCut] = {}


def build_partly_frozen(
    build: Build,
    layer: str,
    side: int,
    *,
    projection: bool = False,
    from_features: bool = True,
    pretrained: bool = False,
) -> tuple[nn.Module, Heads]:
    """A network with what comes before a layer frozen; see `PartlyFrozen`."""
    module, classifier = build(pretrained=pretrained)
    key = repr((build, layer, side, projection))
    if from_features and isinstance(build, partial) and key in _KNOWN:
        known = _KNOWN[key]
        part = PartlyFrozen(module, known.cut, side, from_features=True)
        part.row_per_image = known.row_per_image
        return part, classifier
    cut = find_cut(module, classifier, layer, side, projection)
    if not from_features:
        return PartlyFrozen(module, cut, side, from_features=False), classifier
    others = noise_image(side, images=2, seed=NOISE_SEED + 1)
    with one_thread(), torch.no_grad(), evaluation_mode(module):
        expected = scores_in_output(module(others)).clone()
        features = FeatureExtractor(module, cut.layers[0])(others)
    part = PartlyFrozen(module, cut, side, from_features=True)
    problem = _differs_from_whole(part, features, expected)
    if problem:
        part.row_per_image = True
        problem = _differs_from_whole(part, features, expected)
    if problem:
        raise UserError(
            f"the network cannot be cut at '{cut.layers[0]}': {problem}; choose another layer"
        )
    _KNOWN[key] = _KnownCut(cut, part.row_per_image)
    return part, classifier


def takes_features(build: Build) -> bool:
    """Whether a function makes a network without its frozen part."""
    return (
        isinstance(build, partial)
        and build.func is build_partly_frozen
        and bool(build.keywords.get("from_features", True))
    )


def _differs_from_whole(part: PartlyFrozen, features: Tensor, expected: Tensor) -> str:
    """Why a trained part does not give the scores of the whole network; empty if it does."""
    try:
        with one_thread(), torch.no_grad(), evaluation_mode(part):
            scores = scores_in_output(part(features))
            difference = float((scores - expected).abs().max())
    except Exception as error:  # the network's own code can fail in any way
        return f"what follows does not run on features alone ({in_one_line(error)})"
    if difference > LARGEST_DIFFERENCE * (1 + float(expected.abs().max())):
        return "its scores depend on more than this layer's input"
    return ""


class FeatureExtractor:
    """What comes out of a network's frozen part: the input of the layer at the cut."""

    def __init__(self, module: nn.Module, layer: str) -> None:
        self.layer = layer
        self._module = module
        self._at_cut = module.get_submodule(layer)

    def __call__(self, images: Tensor) -> Tensor:
        """Features of normalised images; the module must be in evaluation mode."""
        features: list[Tensor] = []

        def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tensor = first_tensor(args, kwargs)
            assert tensor is not None
            features.append(tensor)
            raise _Reached

        hook = self._at_cut.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self._module(images)
        except _Reached:
            pass
        finally:
            hook.remove()
        return features[0]

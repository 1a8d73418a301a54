"""The parts of a cut network: what computes features, and what is trained, on images or on these.

The trained part is the network itself with its frozen layers taken out. In their place stands what
they gave for the image of noise; the layer at the cut gets the features in place of its input. So
any network can be cut whose `forward` calls its layers, and every tensor keeps its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from feddraw.core import in_layer
from feddraw.training.network_cut import (
    Arguments,
    Cut,
    first_tensor,
    noise_image,
    with_first_tensor,
)

Arrays = dict[str, NDArray[Any]]


class PartlyFrozen(nn.Module):
    """A network of which a part is frozen, under the names that its tensors and layers have in the
    network.
    """

    whole: nn.Module

    def __init__(self, whole: nn.Module, cut: Cut) -> None:
        super().__init__()
        # The dictionaries of the network, not copies: `Network` puts tensors of its own in the
        # place of those that it finds here, and `whole.forward` has to use them.
        self._parameters = whole._parameters
        self._buffers = whole._buffers
        self._modules = whole._modules
        self._non_persistent_buffers_set = whole._non_persistent_buffers_set
        # Past torch's own `__setattr__`, which would make it a layer: every name would then begin
        # with "whole.".
        self.__dict__["whole"] = whole
        self.cut = cut
        for name, parameter in whole.named_parameters():
            if name in cut.frozen_tensors:
                parameter.requires_grad_(False)

    def train(self, mode: bool = True) -> PartlyFrozen:
        super().train(mode)
        self.whole.training = mode
        return self

    def frozen_arrays(self) -> Arrays:
        """Every frozen tensor by its name, as it is now."""
        return {
            name: _copied(tensor)
            for name, tensor in self.whole.state_dict().items()
            if name in self.cut.frozen_tensors
        }

    def load_frozen(self, name: str, values: NDArray[Any]) -> None:
        """Another value for a frozen tensor."""
        with torch.no_grad():
            tensor = self.whole.state_dict()[name]
            tensor.copy_(torch.from_numpy(values).reshape(tensor.shape))


class FrozenInPlace(PartlyFrozen):
    """A network that takes images, with a frozen part in it.

    The frozen layers are in evaluation mode, so that their batch-norm statistics stay as they are.
    """

    def forward(self, images: Tensor) -> Any:
        return self.whole(images)

    def train(self, mode: bool = True) -> FrozenInPlace:
        super().train(mode)
        for name in self.cut.frozen_layers:
            self.whole.get_submodule(name).train(False)
        return self


class TrainedPart(PartlyFrozen):
    """A network without its frozen layers, which takes what comes out of them: the features.

    With `row_per_image` what stands for frozen layers has a row for each image, as steps between
    the layers may need; else it has one row, which costs less.
    """

    def __init__(
        self,
        whole: nn.Module,
        cut: Cut,
        side: int,
        channels: int = 1,
        *,
        row_per_image: bool = False,
    ) -> None:
        super().__init__(whole, cut)
        self.row_per_image = row_per_image
        self._noise = noise_image(side, channels=channels)
        self._features = torch.empty(0)  # of the batch, for the layers at the cut
        self._taken_out = self._arrays_of_frozen_layers()
        self._in_place_of_layers = [
            self._replace_by_outputs(name, outputs) for name, outputs in cut.frozen_layers.items()
        ]
        if not cut.at_the_end:
            for name in cut.layers:
                layer = whole.get_submodule(name)
                layer.register_forward_pre_hook(self._give_features, with_kwargs=True)

    def _arrays_of_frozen_layers(self) -> Arrays:
        """The tensors that are no longer in the network once these layers are taken out."""
        return {
            name: values
            for name, values in super().frozen_arrays().items()
            if any(in_layer(name, layer) for layer in self.cut.frozen_layers)
        }

    def _replace_by_outputs(self, name: str, outputs: list[Any]) -> _OutputsOfLayer:
        parent, _, leaf = name.rpartition(".")
        replacement = _OutputsOfLayer(self.whole.get_submodule(name), outputs)
        self.whole.get_submodule(parent)._modules[leaf] = replacement
        return replacement

    def _give_features(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments:
        return with_first_tensor(args, kwargs, self._features)

    def forward(self, features: Tensor) -> Any:
        """The scores of a batch."""
        self._features = features.clone() if self.cut.overwritten else features
        if self.cut.at_the_end:
            return self.whole.get_submodule(self.cut.layers[0])(self._features)
        images = len(features)
        for layer in self._in_place_of_layers:
            layer.begin_pass(rows=images if self.row_per_image else 1)
        return self.whole(self._noise.expand(images, -1, -1, -1))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TrainedPart:
        """Also the noise goes to another device or precision."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._noise = fn(self._noise)
        return self

    def frozen_arrays(self) -> Arrays:
        return super().frozen_arrays() | self._taken_out

    def load_frozen(self, name: str, values: NDArray[Any]) -> None:
        if name in self._taken_out:
            self._taken_out[name] = values.reshape(self._taken_out[name].shape)
        else:
            super().load_frozen(name, values)


class _OutputsOfLayer(nn.Module):
    """In the place of a frozen layer: gives what that gave for the image of noise, call by call."""

    def __init__(self, layer: nn.Module, outputs: list[Any]) -> None:
        super().__init__()
        # A network's code may look at a layer, as transformers do at the type of their first
        # kernel before they call it. On the meta device shapes and types are left, without memory.
        # Past torch's `__setattr__`, for its tensors are no longer the network's.
        self.__dict__["layer_without_values"] = layer.to("meta")
        self._outputs = outputs
        self._rows = 1
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        """What a network's code looks at is the layer's."""
        return getattr(self.__dict__["layer_without_values"], name)

    def begin_pass(self, rows: int) -> None:
        self._rows = rows
        self._calls = 0

    def forward(self, *_: Any, **__: Any) -> Any:
        output = self._outputs[self._calls % len(self._outputs)]
        self._calls += 1
        return output if self._rows == 1 else tree_map_only(Tensor, self._repeated, output)

    def _repeated(self, tensor: Tensor) -> Tensor:
        """The same row for every image, in the memory of one."""
        return tensor.expand(self._rows, *tensor.shape[1:]) if tensor.shape[:1] == (1,) else tensor

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _OutputsOfLayer:
        """Also the outputs go to another device or precision."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._outputs = tree_map_only(Tensor, fn, self._outputs)
        return self


def _copied(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().numpy().copy()


class _Reached(Exception):
    """The frozen part has ended."""


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

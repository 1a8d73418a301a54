"""A network by its name, with its classifier found and, where asked for, a projection before it or
frozen layers.

Besides ours, any factory will do that gives a torch module: `timm`'s, torchvision's, MONAI's,
anyone's own. What it calls the number of findings, of channels and of pixels is found by its
arguments' names.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from feddraw import catalog
from feddraw.core import Heads, in_layer
from feddraw.core.model import head_names
from feddraw.errors import UserError, in_one_line, unknown
from feddraw.models._saved_parameters import (
    SavedParameters,
    copy_parameters,
    read_saved_parameters,
    warn_of_unused,
)
from feddraw.training.classifier_by_trial import classifier_of
from feddraw.training.network import Build, PartlyFrozenModule, evaluation_mode

# What factories call the findings, the channels and the pixels.
CLASSES_ARGUMENTS = ("classes", "num_classes", "n_classes", "out_channels", "num_labels")
CHANNELS_ARGUMENTS = ("in_chans", "in_channels", "n_input_channels", "num_channels")
SIDE_ARGUMENTS = ("img_size", "image_size")
CLOSE_NAME = 0.75  # how alike a mistyped name and one of ours are
DIMENSIONS_ARGUMENT = "spatial_dims"  # MONAI's: images, not volumes
OPTIONS_OF_ANY_MODEL = ("classifier", "projection", "freeze", "frozen")  # settings of any model


def build_network(
    name: str,
    classes: int,
    options: Mapping[str, Any],
    *,
    pretrained: bool = False,
    side: int = 0,
    channels: int = 1,
) -> tuple[nn.Module, Heads]:
    """A module and its classifier; `pretrained` fetches the weights that the initial model starts
    from.

    Four options go with any model: `classifier` names the layer, or several in the order of the
    findings, `projection` puts two layers of that width before it, as MOON's authors do, `freeze`
    names layers that are not trained, and `frozen` says where the network is cut, which is done
    elsewhere (`partly_frozen_by_trial`). `side` is that of an image in pixels, where it is known,
    `channels` is 1 for grey images and 3 for colour.
    """
    _check_options_of_any_model(options)
    settings = {key: value for key, value in options.items() if key not in OPTIONS_OF_ANY_MODEL}
    function = find_model(name)
    from_data = {CHANNELS_ARGUMENTS: channels, SIDE_ARGUMENTS: side}
    module = _call_factory(function, settings, classes, from_data, pretrained)
    if not isinstance(module, nn.Module):
        raise UserError(f"model '{name}' gave {type(module).__name__}, not a torch module")
    foreign = ":" in name  # ours are known to be right
    if not foreign:
        _require_channels(module, name, channels)
    elif side and channels == 1:
        _accept_grey_images(module, side)
    named = options.get("classifier", "") or getattr(module, "classifier_name", "")
    tried = (channels, side, side) if foreign and side else None
    classifier = classifier_of(module, classes, named, tried, tell=pretrained)
    if pretrained and (file := _weights_file(function, settings)):
        load_network_weights(module, read_saved_parameters(Path(file)), classifier, file)
    if projection := options.get("projection", 0):
        classifier = _with_projection(module, classifier, projection)
    _freeze_layers(module, options.get("freeze", ()))
    return module, classifier


def find_model(name: str) -> Callable[..., Any]:
    """The factory behind a name; for one that is not ours the message says how to name it."""
    ours = catalog.names("models")
    if ":" in name or name in ours:
        return catalog.find("models", name)
    if get_close_matches(name.lower(), ours, n=1, cutoff=CLOSE_NAME):
        raise unknown("models", name, ours)
    raise UserError(
        f"no '{name}' among the models {', '.join(ours)}: name the factory of another package as"
        f" package.module:function, such as torchvision.models:{name} (pip install torchvision) or"
        f" timm:create_model with model.model_name={name} (pip install timm)"
    )


def _check_options_of_any_model(options: Mapping[str, Any]) -> None:
    for key in ("classifier", "freeze"):
        layers = options.get(key, "")
        names = [layers] if isinstance(layers, str) else layers
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise UserError(
                f"model.{key} must be the name of a layer, or a list of names, not {layers!r}"
            )
    cut = options.get("frozen", "")
    if not isinstance(cut, str):
        raise UserError(
            f"model.frozen must be body or the name of a layer, in quotation marks, not {cut!r}"
        )
    width = options.get("projection", 0)
    if type(width) is not int or width < 0:
        raise UserError(f"model.projection must be a width, or 0 for none, not {width!r}")


def _call_factory(
    make: Callable[..., Any],
    settings: dict[str, Any],
    classes: int,
    from_data: Mapping[tuple[str, ...], int],
    pretrained: bool,
) -> Any:
    """What a factory makes of the settings, and of what follows from the data: numbers by the names
    that factories have for them.

    An argument with a default keeps it, unless images are in colour: networks for one channel and
    for three are then not the same.
    """
    parameters = inspect.signature(make).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    arguments = dict(settings)
    if _weights_file(make, settings):
        del arguments["weights"]
    for names, value in from_data.items():
        in_colour = names is CHANNELS_ARGUMENTS and value == 3
        for name in names:
            if name not in parameters:
                continue
            if in_colour or parameters[name].default is inspect.Parameter.empty:
                arguments.setdefault(name, value)
    if DIMENSIONS_ARGUMENT in parameters:
        arguments.setdefault(DIMENSIONS_ARGUMENT, 2)
    if not pretrained:
        if "weights" in parameters:
            arguments["weights"] = None if parameters["weights"].default is None else "none"
        if "pretrained" in parameters or "pretrained" in arguments:
            arguments["pretrained"] = False
    usual = "num_classes" if open_ended else "classes"
    classes_argument = next((name for name in CLASSES_ARGUMENTS if name in parameters), usual)
    outputs = {classes_argument: arguments.pop(classes_argument, classes)}
    try:
        return catalog.call_with_settings(make, arguments, "model", **outputs)
    # Of what a factory passes on, needs beside itself, or fetches.
    except (TypeError, ImportError, OSError) as error:
        if isinstance(error, TypeError) and not open_ended:
            raise
        raise UserError(
            f"model '{make.__name__}' cannot be made of these settings: {in_one_line(error)}"
        ) from None


def model_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """A factory's own settings, without what follows from the data and what no file of settings can
    hold.
    """
    from_data = (*CLASSES_ARGUMENTS, *CHANNELS_ARGUMENTS, DIMENSIONS_ARGUMENT)
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in from_data and isinstance(parameter.default, bool | int | float | str)
    }


def _weights_file(function: Callable[..., Any], settings: Mapping[str, Any]) -> str:
    """The file of weights for a factory that has no setting of that name; empty where there is
    none.
    """
    file = settings.get("weights", "none")
    if file == "none" or "weights" in inspect.signature(function).parameters:
        return ""
    if not isinstance(file, str):
        raise UserError(f"model.weights must be the path of a file, not {file!r}")
    return file


def _require_channels(module: nn.Module, name: str, channels: int) -> None:
    """Refuse images in colour for one of our networks that takes grey ones only."""
    first = next((layer for layer in module.modules() if isinstance(layer, nn.Conv2d)), None)
    if channels == 3 and first is not None and first.in_channels != 3:
        raise UserError(
            f"model '{name}' takes images with {first.in_channels} channel(s), and data.channels is"
            " 3: set data.channels = 1, or choose another network"
        )


def _accept_grey_images(module: nn.Module, side: int) -> None:
    """Repeat the grey image for a network that wants three channels and does not do it itself."""
    first = next((layer for layer in module.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is None or first.in_channels != 3:
        return
    with torch.no_grad(), evaluation_mode(module):
        try:
            module(torch.zeros(1, 1, side, side))
        except RuntimeError:
            module.register_forward_pre_hook(_repeat_grey_channel)


def _repeat_grey_channel(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0].expand(-1, 3, -1, -1), *inputs[1:])


def load_network_weights(
    module: nn.Module, state: SavedParameters, classifier: Heads, file: str
) -> None:
    """Copy a file's tensors into a network; all but the classifier's must be there, those only if
    they fit.
    """
    heads = head_names(classifier)
    needed = module.state_dict()
    fitting = {
        name: tensor
        for name, tensor in state.items()
        if name in needed and needed[name].shape == tensor.shape
    }
    body = [
        name
        for name, tensor in needed.items()
        if tensor.is_floating_point() and not any(in_layer(name, head) for head in heads)
    ]
    if missing := [name for name in body if name not in fitting]:
        name = missing[0]
        shapes = f"{tuple(needed[name].shape)} here"
        if name in state:
            shapes += f", {tuple(state[name].shape)} in the file"
        raise UserError(
            f"{file} is of another network: {len(missing)} of {len(body)} tensors differ, first"
            f" {name} ({shapes})"
        )
    copy_parameters(module, fitting, file)
    warn_of_unused(sorted(state.keys() - fitting.keys()), len(state), file)


def _with_projection(module: nn.Module, classifier: Heads, width: int) -> str:
    head = module.get_submodule(classifier) if isinstance(classifier, str) else None
    if not isinstance(classifier, str) or not isinstance(head, nn.Linear):
        raise UserError(
            f"a projection needs one linear layer as classifier, and '{classifier}' is none"
        )
    projection = nn.Sequential(
        nn.Linear(head.in_features, head.in_features), nn.ReLU(), nn.Linear(head.in_features, width)
    )
    out = nn.Linear(width, head.out_features)
    parent, _, leaf = classifier.rpartition(".")
    both = nn.Sequential(OrderedDict(projection=projection, out=out))
    setattr(module.get_submodule(parent), leaf, both)
    return f"{classifier}.out"


def _freeze_layers(module: nn.Module, layers: str | Sequence[str]) -> None:
    params = dict(module.named_parameters())
    for layer in (layers,) if isinstance(layers, str) else layers:
        chosen = [parameter for name, parameter in params.items() if in_layer(name, layer)]
        if not chosen:
            raise unknown("layers", layer, {name.rpartition(".")[0] for name in params})
        for parameter in chosen:
            parameter.requires_grad_(False)


def with_frozen_layers(build: Build, frozen: Mapping[str, NDArray[Any]]) -> Build:
    """The same network with these values in its frozen layers: those of the initial model, which is
    made once.
    """
    return partial(_build_with_frozen, build, frozen) if frozen else build


def _build_with_frozen(build: Build, frozen: Mapping[str, NDArray[Any]]) -> tuple[nn.Module, Heads]:
    module, classifier = build()
    params = dict(module.named_parameters())
    with torch.no_grad():
        for name, values in frozen.items():
            if isinstance(module, PartlyFrozenModule):
                module.load_frozen(name, values)
            else:
                params[name].copy_(torch.from_numpy(values))
    return module, classifier

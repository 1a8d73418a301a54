"""A network by its name, with its classifier found and, where asked for, a projection before it."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import nn

from feddraw import catalog
from feddraw.errors import UserError


def build(name: str, classes: int, options: Mapping[str, Any], *, pretrained: bool = False) -> tuple[nn.Module, str]:
    """A module and the name of its classifier; `pretrained` fetches the weights that the initial model starts from.

    Two options go with any model: `classifier` names the layer, and `projection` puts two layers of that width
    before it, as MOON's authors do.
    """
    settings = dict(options)
    named, projection = settings.pop("classifier", ""), settings.pop("projection", 0)
    function = catalog.find("models", name)
    if not pretrained and "weights" in inspect.signature(function).parameters:
        settings["weights"] = "none"
    module = catalog.call(function, settings, "model", classes=classes)
    if not isinstance(module, nn.Module):
        raise UserError(f"model '{name}' gave {type(module).__name__}, not a torch module")
    classifier = str(named or getattr(module, "classifier_name", "") or _last_linear(module))
    return (module, classifier) if not projection else _project(module, classifier, projection)


def _last_linear(module: nn.Module) -> str:
    layers: list[str] = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise UserError("the network has no linear layer: name its classifier (model.classifier = NAME)")
    return layers[-1]


def _project(module: nn.Module, classifier: str, width: int) -> tuple[nn.Module, str]:
    parent, _, leaf = classifier.rpartition(".")
    head = module.get_submodule(classifier)
    if not isinstance(head, nn.Linear):
        raise UserError(f"a projection needs a linear classifier, and '{classifier}' is none")
    inner = nn.Sequential(nn.Linear(head.in_features, head.in_features), nn.ReLU(), nn.Linear(head.in_features, width))
    outer = nn.Linear(width, head.out_features)
    setattr(module.get_submodule(parent), leaf, nn.Sequential(OrderedDict(projection=inner, out=outer)))
    return module, f"{classifier}.out"

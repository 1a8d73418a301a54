"""Networks: functions that return an `nn.Module` for (batch, 1, height, width) images, with the name of its classifier.

`compact` is our own; `densenet121` is MONAI's, imported only when asked for because that import takes seconds.
"""

from __future__ import annotations

import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from feddraw.catalog import call, outside
from feddraw.errors import UserError, unknown

MAX_WEIGHTS = 1 << 29  # bytes of a weights file; DenseNet121's has 31 million


class DenseLayer(nn.Module):
    """Normalise, rectify, convolve, and append what was found to what was there."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(self.relu(self.norm(x)))], dim=1)


class Transition(nn.Sequential):
    """Halve the channels and the resolution between two dense blocks."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(channels, channels // 2, 1, bias=False)
        self.pool = nn.AvgPool2d(2)


MOST_GROWTH = 512  # channels that a layer adds: 140 million parameters


class Compact(nn.Module):
    """A DenseNet of about 50,000 parameters for small images; channels in eights keep the CPU's vectors full."""

    classifier_name = "classifier"

    def __init__(self, classes: int, growth: int, layers: tuple[int, ...] = (2, 3, 3)) -> None:
        super().__init__()
        if not 1 <= growth <= MOST_GROWTH:
            raise UserError(f"model.growth must be from 1 to {MOST_GROWTH}, not {growth}")
        channels = growth
        body: list[nn.Module] = [
            nn.Conv2d(1, channels, 5, stride=2, padding=2, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        ]
        for block, depth in enumerate(layers):
            if block:
                body.append(Transition(channels))
                channels //= 2
            for _ in range(depth):
                body.append(DenseLayer(channels, growth))
                channels += growth
        self.body = nn.Sequential(*body, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x).mean(dim=(2, 3))
        logits: Tensor = self.classifier(features)
        return logits


def compact(classes: int, growth: int = 16) -> nn.Module:
    """Our own small DenseNet, one grey channel, trained from scratch."""
    return Compact(classes, growth)


IMAGENET = "https://download.pytorch.org/models/densenet121-a639ec97.pth"


def densenet121(classes: int, weights: str = "imagenet") -> nn.Module:
    """MONAI's DenseNet121, 7 million parameters; the grey image is repeated into its three channels.

    `weights`: "imagenet" (downloaded once by torch), "none", or the path of torchvision's weights file.
    """
    try:
        from monai.networks.nets.densenet import DenseNet121
    except ImportError:
        raise UserError("densenet121 needs MONAI: pip install 'feddraw[densenet]'") from None

    class GreyDenseNet121(DenseNet121):  # type: ignore[misc,unused-ignore]
        classifier_name = "class_layers.out"

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = super().forward(x.expand(-1, 3, -1, -1))
            return logits

    network = GreyDenseNet121(spatial_dims=2, in_channels=3, out_channels=classes)
    if weights != "none":
        load_imagenet(network, _imagenet() if weights == "imagenet" else _weights_file(Path(weights)))
    return network


def _imagenet() -> dict[str, Tensor]:
    try:
        state: dict[str, Tensor] = torch.hub.load_state_dict_from_url(
            IMAGENET, progress=False, check_hash=True, weights_only=True
        )
    except OSError as error:
        raise UserError(
            f"cannot download ImageNet weights ({error}): fetch {IMAGENET} on another machine and give its path as "
            "model.weights = FILE, or start from scratch with model.weights = none"
        ) from None
    return state


def _weights_file(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise UserError(f"no weights file {path}: give the path of torchvision's densenet121 weights")
    if path.stat().st_size > MAX_WEIGHTS:
        raise UserError(f"{path} is larger than {MAX_WEIGHTS >> 20} MB: not DenseNet121's weights")
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{path} is not a file of weights: {reason[:200]}") from None
    if not isinstance(state, dict) or not all(isinstance(k, str) and torch.is_tensor(v) for k, v in state.items()):
        raise UserError(f"{path} is not a file of weights: it should hold tensors by name")
    return state


def load_imagenet(network: nn.Module, state: dict[str, Tensor]) -> None:
    """Copy torchvision's weights under MONAI's names; every tensor but the head must be there."""
    renamed = {re.sub(r"(denselayer\d+)\.(norm|conv)\.?([12])\.", r"\1.layers.\2\3.", k): v for k, v in state.items()}
    own = network.state_dict()
    body = [name for name, value in own.items() if name.startswith("features.") and value.is_floating_point()]
    bad = [name for name in body if name not in renamed or renamed[name].shape != own[name].shape]
    if bad:
        raise UserError(
            f"these are not DenseNet121's weights: {len(bad)} of {len(body)} tensors differ, first {bad[0]}"
        )
    network.load_state_dict({name: renamed[name] for name in body}, strict=False)


# ---------------------------------------------------------------------------------------------------- by name

MODELS: dict[str, Callable[..., nn.Module]] = {"compact": compact, "densenet121": densenet121}


def build(name: str, classes: int, options: Mapping[str, Any], *, pretrained: bool = False) -> tuple[nn.Module, str]:
    """A module and the name of its classifier; `pretrained` fetches the weights that the initial model starts from.

    Two options go with any model: `classifier` names the layer, and `projection` puts two layers of that width
    before it, as MOON's authors do.
    """
    settings = dict(options)
    named, projection = settings.pop("classifier", ""), settings.pop("projection", 0)
    function = find(name)
    if not pretrained and "weights" in inspect.signature(function).parameters:
        settings["weights"] = "none"
    module = call(function, settings, "model", classes=classes)
    if not isinstance(module, nn.Module):
        raise UserError(f"model '{name}' gave {type(module).__name__}, not a torch module")
    classifier = str(named or getattr(module, "classifier_name", "") or _last_linear(module))
    return (module, classifier) if not projection else _project(module, classifier, projection)


def find(name: str) -> Callable[..., nn.Module]:
    if ":" in name:
        return outside(name)
    if name not in MODELS:
        raise unknown("models", name, MODELS)
    return MODELS[name]


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

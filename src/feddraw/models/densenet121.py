"""MONAI's DenseNet121, imported only when it is used, because that import takes seconds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from feddraw.errors import UserError
from feddraw.models._saved_parameters import (
    SavedParameters,
    copy_parameters,
    read_saved_parameters,
    warn_of_unused,
)

MAX_DENSENET121_FILE = 1 << 29  # bytes of a weights file; DenseNet121's has 31 million
TORCHVISION_NAME = re.compile(r"(denselayer\d+)\.(norm|conv)\.?([12])\.")
IMAGENET_URL = "https://download.pytorch.org/models/densenet121-a639ec97.pth"


def densenet121(classes: int, weights: str = "imagenet") -> nn.Module:
    """MONAI's DenseNet121, 7 million parameters; a grey image is repeated into three channels.

    `weights`: "imagenet" (downloaded once by torch), "none", or the path of torchvision's weights
    file.
    """

    class GreyDenseNet121(monai_densenet121()):  # type: ignore[misc,unused-ignore]
        classifier_name = "class_layers.out"

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = super().forward(x.expand(-1, 3, -1, -1))
            return logits

    network = GreyDenseNet121(spatial_dims=2, in_channels=3, out_channels=classes)
    if weights == "imagenet":
        load_torchvision_densenet121(network, _download_imagenet_densenet121())
    elif weights != "none":
        load_torchvision_densenet121(
            network, read_saved_parameters(Path(weights), MAX_DENSENET121_FILE)
        )
    return network


def monai_densenet121() -> Any:
    """MONAI's class."""
    try:
        from monai.networks.nets.densenet import DenseNet121
    except ImportError:
        raise UserError("DenseNet121 needs MONAI: pip install 'feddraw[densenet]'") from None
    return DenseNet121


def _download_imagenet_densenet121() -> SavedParameters:
    try:
        download = torch.hub.load_state_dict_from_url
        return dict(download(IMAGENET_URL, progress=False, check_hash=True, weights_only=True))
    except OSError as error:
        fetch = f"fetch {IMAGENET_URL} on another machine and give its path as model.weights = FILE"
        scratch = "start from scratch with model.weights = none"
        raise UserError(
            f"cannot download ImageNet weights ({error}): {fetch}, or {scratch}"
        ) from None


def load_torchvision_densenet121(network: nn.Module, state: SavedParameters) -> None:
    """Copy torchvision's parameters under MONAI's names; every tensor but the classifier's must be
    there.
    """
    renamed = {TORCHVISION_NAME.sub(r"\1.layers.\2\3.", name): state[name] for name in state}
    needed = network.state_dict()
    body = [
        name
        for name, tensor in needed.items()
        if name.startswith("features.") and tensor.is_floating_point()
    ]
    different = [
        name for name in body if name not in renamed or renamed[name].shape != needed[name].shape
    ]
    if different:
        raise UserError(
            f"these are not DenseNet121's weights: {len(different)} of {len(body)} tensors differ,"
            f" first {different[0]}"
        )
    source = "DenseNet121's weights"
    copy_parameters(network, {name: renamed[name] for name in body}, source)
    warn_of_unused(sorted(renamed.keys() - set(body)), len(renamed), source)

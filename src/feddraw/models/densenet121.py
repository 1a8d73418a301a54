"""MONAI's DenseNet121, imported only when it is used, because that import takes seconds."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor, nn

from feddraw.errors import UserError
from feddraw.models._weights import State, read_weights

MAX_WEIGHTS = 1 << 29  # bytes of a weights file; DenseNet121's has 31 million
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


def _weights_file(path: Path) -> State:
    return read_weights(path, MAX_WEIGHTS)


def load_imagenet(network: nn.Module, state: State) -> None:
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

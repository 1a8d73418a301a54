"""MONAI's DenseNet121, imported only when it is used, because that import takes seconds."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor, nn

from feddraw.errors import UserError

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

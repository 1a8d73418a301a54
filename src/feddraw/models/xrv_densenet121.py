"""torchxrayvision's DenseNet121: one grey channel, trained on chest radiographs.

Its authors scale grey levels to −1024 … 1024, which `data.normalize = [0.5, 0.00048828125]` does.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from feddraw.models._saved_parameters import read_saved_parameters
from feddraw.models.densenet121 import (
    MAX_DENSENET121_FILE,
    load_torchvision_densenet121,
    monai_densenet121,
)


def xrv_densenet121(classes: int, weights: str = "none") -> nn.Module:
    """torchxrayvision's DenseNet121 for one grey channel; needs data.normalize, see docs/frozen.md.

    `weights`: "none", or the path of a file with the state dict of one of torchxrayvision's
    networks, which are pickled and would run code when they are read.
    """
    network: nn.Module = monai_densenet121()(spatial_dims=2, in_channels=1, out_channels=classes)
    network.classifier_name = "class_layers.out"  # type: ignore[assignment]
    if weights != "none":
        state = read_saved_parameters(Path(weights), MAX_DENSENET121_FILE)
        load_torchvision_densenet121(network, state)
    return network

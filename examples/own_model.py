"""A network of one's own: any function that takes the number of findings and returns a torch
module.

python examples/own_model.py feddraw run --model own_model:three_layers --set model.width=16      #
from the folder that holds this file
"""

from torch import nn

from feddraw import Experiment, iterate


def three_layers(classes: int, width: int = 8) -> nn.Module:
    """Three convolutions.

    Images come as (batch, 1, height, width); FedDRAW compares the last linear layer.
    """
    return nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.Conv2d(2 * width, 4 * width, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, classes),
    )


def main() -> None:
    small = {
        "scenario.scale": 0.005,
        "rounds": 3,
        "data.size": 28,
        "data.validation": 200,
        "data.test": 200,
    }
    experiment = Experiment(model={"name": "own_model:three_layers", "width": 8}, engine="serial")
    for result in iterate(experiment.with_settings(small)):
        print(f"round {result.round}: validation AUC {result.metrics.validation.auc.macro:.3f}")


if __name__ == "__main__":
    main()

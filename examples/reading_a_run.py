"""A run's folder in pandas: the ledger of weights, the rounds, the metrics, and the model in plain
PyTorch.

python examples/reading_a_run.py
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from safetensors.torch import load_file

from feddraw import Experiment, run
from feddraw.models import compact

SMALL = {
    "scenario.scale": 0.005,
    "rounds": 3,
    "data.size": 28,
    "data.validation": 200,
    "data.test": 200,
}


def read(folder: Path) -> None:
    ledger = pd.read_csv(folder / "weights.csv")
    print(ledger.pivot(index="round", columns="client", values="weight").round(3), end="\n\n")
    rounds = pd.read_json(folder / "rounds.jsonl", lines=True)
    print(rounds[["round", "loss"]].round(3), end="\n\n")
    metrics = json.loads((folder / "metrics.json").read_text())["test"]
    print(
        pd.DataFrame({kind: metrics[kind]["per_class"] for kind in ("auc", "gm")}).round(3),
        end="\n\n",
    )

    network = compact(classes=5)  # or MONAI's DenseNet121, if that is what was trained
    network.load_state_dict(load_file(folder / "model.safetensors"))
    print(sum(parameter.numel() for parameter in network.parameters()), "parameters are loaded")


def main() -> None:
    with TemporaryDirectory() as place:
        folder = Path(place) / "run"
        list(run(Experiment(engine="serial").with_settings(SMALL), folder))
        read(folder)


if __name__ == "__main__":
    main()

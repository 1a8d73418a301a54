"""Are phantoms neither trivial nor hopeless? Train `compact` centrally on them and check each
finding's test AUC.

The bar is 64 px, 10,000 training images and seeds 0 to 2, about 15 minutes:

    python benchmarks/phantom_auc.py

What the laptop preset sees:

    python benchmarks/phantom_auc.py --size 32 --train 3500 --test 2000 --epochs 15 --seeds 0
"""

from __future__ import annotations

import argparse

from feddraw.experiment.running import run
from feddraw.experiment.settings import Experiment

MACRO, EACH = (0.80, 0.93), (0.70, 0.97)


def central(ask: argparse.Namespace, seed: int) -> dict[str, float]:
    """A federation of one client and one round is central training; AUC by finding, and
    their mean.
    """
    data = {
        "size": ask.size,
        "mix": ask.mix,
        "train": ask.train,
        "validation": 200,
        "test": ask.test,
        "seed": seed,
    }
    experiment = Experiment(
        data={"name": "phantom"} | data, scenario={"name": "iid", "clients": 1}, method="fedavg"
    )
    settings = {"rounds": 1, "training.epochs": ask.epochs, "seed": seed, "engine": "serial"}
    (result,) = run(experiment.with_settings(settings))
    areas = result.metrics.test.auc
    return {"macro": areas.macro, **areas.per_class}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--mix", default="chestmnist")
    parser.add_argument("--train", type=int, default=10_000)
    parser.add_argument("--test", type=int, default=5_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    ask = parser.parse_args()
    for seed in ask.seeds:
        areas = central(ask, seed)
        limits = {name: MACRO if name == "macro" else EACH for name in areas}
        held = all(limits[name][0] <= area <= limits[name][1] for name, area in areas.items())
        columns = "  ".join(f"{name} {area:.3f}" for name, area in areas.items())
        print(
            f"seed {seed}  {columns}  {'within the bar' if held else 'OUTSIDE THE BAR'}", flush=True
        )


if __name__ == "__main__":
    main()

"""Ten thousand simulated clients of twenty images: three rounds complete, and memory stays flat
after the first.

    python benchmarks/clients.py [--clients 10000] [--rounds 3]

A whole streaming run with two workers and its folder. The images are a few thousand phantoms, each
at many clients.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from feddraw.data.dataset import Dataset, Labels
from feddraw.data.datasets.phantom import phantom
from feddraw.experiment.running import iterate
from feddraw.experiment.settings import Experiment

IMAGES, DRAWN = 20, 2000


def crowd(clients: int) -> Dataset:
    """Phantoms for validation and test, and as many for training as the clients need, repeated."""
    drawn = phantom(28, train=DRAWN, validation=200, test=200)
    kept = np.concatenate([drawn.rows["validation"], drawn.rows["test"]])
    rows = np.concatenate([np.resize(drawn.rows["train"], clients * IMAGES), kept])
    names = np.array([f"{number:08d}" for number in range(len(rows))])
    ends = np.split(np.arange(len(rows)), [clients * IMAGES, clients * IMAGES + 200])
    labels = Labels(drawn.labels.values[rows], drawn.labels.findings, names)
    return replace(
        drawn,
        images=drawn.images[rows],
        labels=labels,
        rows=dict(zip(drawn.rows, ends, strict=True)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    ask = parser.parse_args()
    experiment = Experiment(
        scenario={"name": "iid", "clients": ask.clients},
        model={"name": "compact", "growth": 8},
        rounds=ask.rounds,
        stream=True,
        workers=2,
    ).with_settings({"data.size": 28, "training.epochs": 1, "training.batch_size": IMAGES})
    began, here = time.monotonic(), psutil.Process()
    with tempfile.TemporaryDirectory() as folder:
        for result in iterate(experiment, Path(folder) / "run", dataset=crowd(ask.clients)):
            everyone = [here, *here.children(recursive=True)]
            own = sum(process.memory_full_info().uss for process in everyone) / 2**20
            seconds = result.seconds["training"] + result.seconds["aggregation"]
            print(
                f"round {result.round}: {len(result.weights):,} clients counted, {seconds:.0f} s,"
                f" {own:.0f} MB in {len(everyone)} processes, {time.monotonic() - began:.0f} s"
                " since the start",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""Thousands of rounds of a tiny run, with memory and open files measured on the way: both must stay
flat.

    python benchmarks/soak.py [--rounds 2000] [--plot docs/images/soak.svg]

The run writes its folder as always; the workers' memory counts as well. Everything is synthetic.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from matplotlib.figure import Figure

from feddraw.experiment.running import iterate
from feddraw.experiment.settings import Experiment

WARM = 0.1  # share of the rounds after which nothing should grow
WAYS = {
    "serial": {"engine": "serial"},
    "serial, streaming": {"engine": "serial", "method": "ditto", "stream": True},
    "one worker": {"engine": "processes", "workers": 1},
    "Flower, in this process": {"engine": "flower"},
}


def tiny(rounds: int, way: dict[str, Any]) -> Experiment:
    experiment = Experiment(
        data={"name": "phantom", "size": 28, "train": 48, "validation": 48, "test": 48},
        scenario={"name": "quantity", "clients": 3, "power": 0.5, "scale": 1.0},
        model={"name": "compact", "growth": 8},
        rounds=rounds,
        **{"method": "scaffold", **way},  # the one with most to remember
    )
    return experiment.with_settings({"training.batch_size": 16, "training.epochs": 1})


def soak(rounds: int, way: dict[str, Any]) -> np.ndarray:
    """(rounds, 2): megabytes and open files of this process and its workers."""
    here = psutil.Process()
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in iterate(tiny(rounds, way), Path(folder) / "run"):
            everyone = [here, *here.children(recursive=True)]
            memory = sum(process.memory_info().rss for process in everyone) / 2**20
            measured.append((memory, sum(process.num_fds() for process in everyone)))
    return np.array(measured)


def growth(values: np.ndarray) -> float:
    """Of the least-squares line after warming up: what it adds from there to the end."""
    later = values[int(WARM * len(values)) :]
    slope = np.polyfit(np.arange(len(later)), later, 1)[0]
    return float(slope * len(later))


def draw(found: dict[str, np.ndarray], path: Path) -> None:
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for name, values in found.items():
        above.plot(values[:, 0], linewidth=1, label=name)
        below.plot(values[:, 1], linewidth=1, label=name)
    above.set_ylabel("memory in MB")
    below.set_ylabel("open files")
    below.set_xlabel("round")
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    above.legend(frameon=False, ncols=2)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--plot", type=Path)
    chosen = parser.parse_args()
    found = {}
    for name, way in WAYS.items():
        began = time.monotonic()
        found[name] = soak(chosen.rounds, way)
        memory, files = found[name].T
        late = int(WARM * len(memory))
        print(
            f"{name}: {chosen.rounds} rounds in {time.monotonic() - began:.0f} s; memory"
            f" {memory[late]:.1f} MB at round {late}, {memory[-1]:.1f} MB at the end, trend"
            f" {growth(memory):+.2f} MB; open files {int(files[late:].min())} to"
            f" {int(files[late:].max())}",
            flush=True,
        )
    if chosen.plot:
        draw(found, chosen.plot)


if __name__ == "__main__":
    main()

"""Small stand-ins for archives that the documentation speaks of, drawn from phantoms: same layout, no patient."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from feddraw.data import FINDINGS, Dataset


def phantoms(images: int = 240, size: int = 32) -> Dataset:
    from feddraw.data.phantom import phantom

    return phantom(size=size, mix="chexpert", train=images, validation=0, test=0, seed=1)


def write_images(dataset: Dataset, folder: Path, names: Sequence[str]) -> None:
    from PIL import Image

    for image, name in zip(dataset.images, names, strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(image)).save(path)


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def own_images(folder: Path) -> None:
    """`mine.csv`, with three hospitals, two images a patient and findings of its own, beside a folder of PNG files."""
    dataset = phantoms()
    names = [f"images/{number:04d}.png" for number in range(len(dataset.labels))]
    write_images(dataset, folder, names)
    hospitals = ["North"] * 120 + ["East"] * 80 + ["South"] * 40
    values = dataset.labels.values
    rows = [
        [name, f"P{number // 2:03d}", hospital, *(int(value) for value in row[:3])]
        for number, (name, hospital, row) in enumerate(zip(names, hospitals, values, strict=True))
    ]
    write_table(folder / "mine.csv", ["Path", "Patient ID", "Hospital", *FINDINGS[:3]], rows)


def tidy_table(folder: Path) -> None:
    """`table.csv`: three methods in four scenarios."""
    rng = np.random.default_rng(0)
    rows = [
        [f"S{scenario}", method, round(0.8 + 0.02 * rank + 0.01 * rng.standard_normal(), 4)]
        for scenario in range(4)
        for rank, method in enumerate(("fedavg", "uniform", "feddraw"))
    ]
    write_table(folder / "table.csv", ["scenario", "method", "auc"], rows)


def finished_run(folder: Path) -> None:
    """`runs/long`: a run of two rounds, unless there is one."""
    from feddraw import Experiment, run

    if not (folder / "runs" / "long").exists():
        list(
            run(
                Experiment(rounds=2, engine="serial").with_settings({"scenario.scale": 0.005}), folder / "runs" / "long"
            )
        )


def three_studies(folder: Path) -> None:
    """`runs/my-study`, `runs/a`, `runs/b`: FedDRAW and FedAvg, one round each."""
    from feddraw import Experiment, run

    small = {"scenario.scale": 0.005, "rounds": 1, "training.epochs": 1, "data.size": 28}
    for study, method in (("my-study", "feddraw"), ("my-study", "fedavg"), ("a", "feddraw"), ("b", "fedavg")):
        experiment = Experiment(method=method, engine="serial").with_settings(small)
        list(run(experiment, folder / "runs" / study / f"CHM-2-{method}-0"))

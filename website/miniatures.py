"""Small stand-ins for archives that the documentation speaks of, drawn from phantoms: same layout,
no patient.
"""

from __future__ import annotations

import csv
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from feddraw.data.dataset import Dataset
from feddraw.data.finding_names import PAPER_FINDINGS


def phantoms(images: int = 240, size: int = 32) -> Dataset:
    from feddraw.data.datasets.phantom import phantom

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
    """`mine.csv`, with three hospitals, two images a patient and findings of its own, beside a
    folder of PNG files.
    """
    dataset = phantoms()
    names = [f"images/{number:04d}.png" for number in range(len(dataset.labels))]
    write_images(dataset, folder, names)
    hospitals = ["North"] * 120 + ["East"] * 80 + ["South"] * 40
    values = dataset.labels.values
    rows = [
        [name, f"P{number // 2:03d}", hospital, *(int(value) for value in row[:3])]
        for number, (name, hospital, row) in enumerate(zip(names, hospitals, values, strict=True))
    ]
    write_table(folder / "mine.csv", ["Path", "Patient ID", "Hospital", *PAPER_FINDINGS[:3]], rows)


def two_tables(folder: Path) -> None:
    """`north.csv` and `south.csv`, two hospitals that label different findings, beside a folder of
    PNG files.
    """
    dataset = phantoms(120)
    names = [f"images/{number:04d}.png" for number in range(len(dataset.labels))]
    write_images(dataset, folder, names)
    for site, rows, places in (("north", range(70), (0, 1)), ("south", range(70, 120), (1, 2))):
        lines = [
            [names[row], *(int(dataset.labels.values[row, place]) for place in places)]
            for row in rows
        ]
        write_table(
            folder / f"{site}.csv", ["Path", *(PAPER_FINDINGS[place] for place in places)], lines
        )


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
                Experiment(rounds=2, engine="serial").with_settings({"scenario.scale": 0.005}),
                folder / "runs" / "long",
            )
        )


def three_studies(folder: Path) -> None:
    """`runs/my-study`, `runs/a`, `runs/b`: FedDRAW and FedAvg, one round each."""
    from feddraw import Experiment, run

    small = {"scenario.scale": 0.005, "rounds": 1, "training.epochs": 1, "data.size": 28}
    for study, method in (
        ("my-study", "feddraw"),
        ("my-study", "fedavg"),
        ("a", "feddraw"),
        ("b", "fedavg"),
    ):
        experiment = Experiment(method=method, engine="serial").with_settings(small)
        list(run(experiment, folder / "runs" / study / f"CHM-2-{method}-0"))


def archives(folder: Path) -> None:
    """`chestmnist_64.npz` in MedMNIST's layout, and a folder `CheXpert-v1.0-small`."""
    from feddraw.data.datasets.phantom import phantom
    from feddraw.data.finding_names import CHESTXRAY14_FINDINGS

    drawn = phantom(size=64, mix="chestmnist", train=400, validation=100, test=100, seed=1)
    labels = np.zeros((len(drawn.images), len(CHESTXRAY14_FINDINGS)), np.uint8)
    labels[:, [CHESTXRAY14_FINDINGS.index(name) for name in PAPER_FINDINGS]] = drawn.labels.values
    arrays = {}
    for part, rows in zip(("train", "val", "test"), drawn.rows.values(), strict=True):
        arrays |= {f"{part}_images": drawn.images[rows], f"{part}_labels": labels[rows]}
    np.savez_compressed(folder / "chestmnist_64.npz", **arrays)

    chexpert = folder / "CheXpert-v1.0-small"
    release = phantom(size=64, mix="chexpert", train=400, validation=0, test=0, seed=2)
    parts = ["train" if number < 300 else "valid" for number in range(400)]
    names = [
        f"{part}/patient{number:05d}/study1/view1_frontal.jpg" for number, part in enumerate(parts)
    ]
    write_images(release, chexpert, names)
    header = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *PAPER_FINDINGS]
    rows = [
        [
            f"{chexpert.name}/{name}",
            "Female",
            60,
            "Frontal",
            "AP",
            *(f"{value}.0" for value in values),
        ]
        for name, values in zip(names, release.labels.values, strict=True)
    ]
    write_table(chexpert / "train.csv", header, rows[:300])
    write_table(chexpert / "valid.csv", header, rows[300:])


def matrix_archives(folder: Path) -> None:
    """Both archives of the paper's matrix at a scale of 0.002, as the tests have them, and the
    matrix's file.
    """
    root = Path(__file__).parents[1]
    sys.path.append(str(root / "tests"))
    from archives import chestmnist_archive, chexpert_archive

    chexpert_archive(folder, 0.002)
    chestmnist_archive(folder, 0.002)
    (folder / "studies").mkdir(exist_ok=True)
    shutil.copy(root / "studies" / "paper.toml", folder / "studies")

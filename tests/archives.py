"""CheXpert's folder and ChestMNIST's file in miniature, from phantoms: enough for all twelve
scenarios at a scale.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from feddraw.data.datasets.phantom import phantom
from feddraw.data.finding_names import CHESTXRAY14_FINDINGS, PAPER_FINDINGS
from feddraw.data.scenarios.paper_scenarios import paper_scenario_images

HEADER = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *PAPER_FINDINGS]


def chexpert_archive(folder: Path, scale: float, *, tested: bool = True, size: int = 28) -> Path:
    """The small release; without test labels, as it is published, unless they are asked for."""
    drawn = phantom(
        size=size,
        mix="chexpert",
        train=paper_scenario_images("CHX-7", scale) or 0,
        validation=60,
        test=60,
        seed=2,
    )
    release = folder / "CheXpert-v1.0-small"
    lines: dict[str, list[list[object]]] = {"train": [], "valid": [], "test": []}
    for (split, own), rows in zip(lines.items(), drawn.rows.values(), strict=True):
        for row in rows:
            name = f"{split}/patient{row:05d}/study1/view1_frontal.jpg"
            (release / name).parent.mkdir(parents=True)
            Image.fromarray(drawn.images[row]).save(release / name)
            marks = [f"{value}.0" for value in drawn.labels.values[row]]
            own.append([f"{release.name}/{name}", "Female", 60, "Frontal", "AP", *marks])
    tables = {"train.csv": lines["train"], "valid.csv": lines["valid"]} | (
        {"test.csv": lines["test"]} if tested else {}
    )
    for name, own in tables.items():
        with (release / name).open("w", newline="") as file:
            csv.writer(file).writerows([HEADER, *own])
    return release


def chestmnist_archive(folder: Path, scale: float, *, size: int = 28) -> Path:
    drawn = phantom(
        size=size,
        mix="chestmnist",
        train=paper_scenario_images("CHM-5", scale) or 0,
        validation=60,
        test=60,
        seed=1,
    )
    labels = np.zeros((len(drawn.images), len(CHESTXRAY14_FINDINGS)), np.uint8)
    labels[:, [CHESTXRAY14_FINDINGS.index(name) for name in PAPER_FINDINGS]] = drawn.labels.values
    arrays = {}
    for split, rows in zip(("train", "val", "test"), drawn.rows.values(), strict=True):
        arrays |= {f"{split}_images": drawn.images[rows], f"{split}_labels": labels[rows]}
    np.savez_compressed(folder / "chestmnist.npz", **arrays)
    return folder / "chestmnist.npz"

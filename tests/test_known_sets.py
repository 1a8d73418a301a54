"""MedMNIST's sets by name, and the synthetic cells: images in colour of exactly one class."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path

import numpy as np
import pytest

from feddraw import catalog
from feddraw.data.dataset import CLASSES_TASK
from feddraw.data.dataset_by_name import dataset_defaults, dataset_names, open_dataset
from feddraw.data.datasets.cells import CELL_KINDS, cells
from feddraw.data.datasets.medmnist import find_medmnist
from feddraw.data.synthetic import is_synthetic
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.running import run
from feddraw.experiment.settings import Experiment
from feddraw.results.recorded_run import read_run

MEMBERS = catalog.members("datasets")


def write_medmnist(path: Path, classes: int, side: int = 28, channels: int = 3) -> None:
    """A file as MedMNIST publishes it: images, and one column of class numbers."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split, images in (("train", 6 * classes), ("val", 2 * classes), ("test", 2 * classes)):
        shape = (images, side, side, 3) if channels == 3 else (images, side, side)
        labels = np.arange(images) % classes
        pixels = rng.integers(0, 60, shape) + (180 * labels / classes).reshape(
            -1, *[1] * (len(shape) - 1)
        )
        arrays[f"{split}_images"] = pixels.astype(np.uint8)
        arrays[f"{split}_labels"] = labels[:, None].astype(np.uint8)
    np.savez_compressed(path, **arrays)


# ---------------------------------------------------------------------------------------- MedMNIST


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_each_set_has_the_classes_and_channels_of_its_table(name: str, tmp_path: Path) -> None:
    _, told = MEMBERS[name]
    classes, channels = told["classes"], told["channels"]
    write_medmnist(tmp_path / f"{name}.npz", len(classes), channels=channels)
    dataset = open_dataset(name, size=28, options={"path": str(tmp_path)})
    assert dataset.findings == tuple(classes)
    assert dataset.channels == channels == dataset_defaults(name)["channels"]
    assert dataset.labels.task == CLASSES_TASK
    assert (dataset.labels.values.sum(axis=1) == 1).all()
    of_train = dataset.labels.values[dataset.rows["train"]].argmax(axis=1)
    assert (of_train == np.arange(6 * len(classes)) % len(classes)).all()
    assert name in dataset_names()


def test_the_family_is_listed_by_its_members_and_not_by_its_file() -> None:
    assert len(MEMBERS) == 11
    assert {"pathmnist", "dermamnist", "organsmnist"} <= set(catalog.names("datasets"))
    assert "medmnist" not in catalog.names("datasets")
    assert catalog.first_doc_line("datasets", "dermamnist").startswith("DermaMNIST: pigmented")
    settings = inspect.signature(catalog.find("datasets", "dermamnist")).parameters
    assert settings.keys() == {"how", "path", "channels", "normalize"}
    assert not is_synthetic("dermamnist")


def test_a_run_on_a_set_in_colour_needs_its_name_and_its_file(tmp_path: Path) -> None:
    write_medmnist(tmp_path / "bloodmnist.npz", 8)
    experiment = Experiment(
        data={"name": "bloodmnist", "path": str(tmp_path / "bloodmnist.npz"), "size": 28},
        scenario={"name": "iid", "clients": 2},
        model={"name": "plain", "width": 4},
        rounds=1,
        engine="serial",
        training={"batch_size": 8},
    )
    assert complete_settings(experiment).channels == 3
    run(experiment, tmp_path / "run")
    recorded = read_run(tmp_path / "run")
    assert recorded.task == CLASSES_TASK
    assert recorded.findings == tuple(MEMBERS["bloodmnist"][1]["classes"])
    assert np.isfinite(recorded.metrics.test.more["balanced_accuracy"].macro)


def test_of_a_folder_the_file_of_the_fitting_size_is_taken(tmp_path: Path) -> None:
    for file in ("octmnist.npz", "octmnist_64.npz"):
        (tmp_path / file).touch()
    fitting = {
        20: "octmnist.npz",
        28: "octmnist.npz",
        32: "octmnist_64.npz",
        100: "octmnist_64.npz",
    }
    for size, file in fitting.items():
        assert find_medmnist("octmnist", str(tmp_path), size) == tmp_path / file


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, r"no dermamnist\.npz in .*get it from https://zenodo"),
        ({"classes": 8}, "with a class that is no whole number from 0 to 6"),
        ({"columns": 3}, "labels must be one column of class numbers, not 3 columns"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(
    change: dict[str, int], says: str, tmp_path: Path
) -> None:
    if change:
        write_medmnist(tmp_path / "dermamnist.npz", change.get("classes", 7))
        arrays = dict(np.load(tmp_path / "dermamnist.npz"))
        for split in ("train", "val", "test"):
            labels = np.repeat(arrays[f"{split}_labels"], change.get("columns", 1), axis=1)
            arrays[f"{split}_labels"] = labels
        np.savez(tmp_path / "dermamnist.npz", **arrays)
    with pytest.raises(UserError, match=says):
        open_dataset("dermamnist", size=28, options={"path": str(tmp_path)})


def test_an_archive_of_ones_own_with_class_numbers_has_classes(tmp_path: Path) -> None:
    write_medmnist(tmp_path / "own.npz", 3, channels=1)
    dataset = open_dataset(str(tmp_path / "own.npz"), size=28, options={})
    assert (dataset.findings, dataset.labels.task) == (("0", "1", "2"), CLASSES_TASK)
    arrays = dict(np.load(tmp_path / "own.npz"))
    np.savez(tmp_path / "named.npz", classes=["a", "b", "c"], **arrays)
    named = open_dataset(str(tmp_path / "named.npz"), size=28, options={})
    assert named.findings == ("a", "b", "c")


# ------------------------------------------------------------------------------------------- cells


def digest(**settings: int | float) -> str:
    drawn = cells(**{"size": 24, "train": 100, "validation": 20, "test": 30, **settings})
    content = drawn.images.tobytes() + drawn.labels.values.tobytes()
    return hashlib.sha256(content).hexdigest()


def test_cells_have_the_same_bits_for_the_same_seed() -> None:
    assert digest() == digest()
    assert digest() != digest(seed=1)
    assert digest() != digest(skew=0.0)


def test_every_cell_is_of_one_kind_and_every_patient_in_one_split_at_one_site() -> None:
    drawn = cells(size=16, train=203, validation=41, test=62, sites=3)
    labels = drawn.labels
    assert labels.findings == CELL_KINDS
    assert labels.task == CLASSES_TASK
    assert (labels.values.sum(axis=1) == 1).all()
    assert len(set(labels.names.tolist())) == 306
    assert labels.patients is not None
    assert labels.sites is not None
    splits = np.empty(306, object)
    for split, rows in drawn.rows.items():
        splits[rows] = split
    for column in (splits, labels.sites):
        pairs = set(zip(labels.patients.tolist(), column.tolist(), strict=True))
        assert len(pairs) == len(set(labels.patients.tolist()))
    assert sorted(set(labels.sites.tolist())) == ["Lab 1", "Lab 2", "Lab 3"]


def test_skew_makes_one_kind_more_common_at_each_site() -> None:
    drawn = cells(size=16, train=4000, validation=0, test=0, sites=2, skew=5.0)
    first = drawn.labels.values[drawn.labels.sites == "Lab 1"].mean(axis=0)
    assert abs(first[0] - 0.6) < 0.04  # 6 of 10 parts
    assert np.abs(first[1:] - 0.1).max() < 0.03


def test_cells_in_grey_are_the_luminance_of_those_in_colour() -> None:
    few = {"size": 16, "train": 10, "validation": 0, "test": 0}
    colour = cells(**few).images.astype(float)
    grey = cells(**few, channels=1).images
    assert np.abs(colour @ [0.299, 0.587, 0.114] - grey).max() <= 1


def test_cells_are_learnt_in_a_few_epochs(tmp_path: Path) -> None:
    experiment = Experiment(
        data={"name": "cells", "size": 24, "train": 600, "validation": 100, "test": 200},
        scenario="by_site",
        model={"name": "compact", "growth": 8},
        method="fedavg",
        rounds=4,
        engine="serial",
        training={"batch_size": 16, "epochs": 1, "lr": 0.005},
    )
    found = run(experiment, tmp_path / "run").metrics.test
    assert found.auc.macro > 0.88
    assert complete_settings(experiment).channels == 3


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"channels": 2}, "must be 1"),
        ({"skew": -1.0}, "cells skew must be a number of zero or more"),
        ({"train": -5}, "cells train must be a whole number"),
        ({"size": 8}, "cells have 16 to 224 pixels, not 8"),
        ({"train": 200_000}, "at most 100,000 cells"),
        ({"sites": 0}, "cells sites"),
    ],
)
def test_cells_that_cannot_be_drawn_are_refused_in_one_line(
    settings: dict[str, int], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        cells(**settings)

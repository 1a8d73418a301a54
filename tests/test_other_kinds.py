"""`predict` names images of another kind than those that a model was trained on."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from feddraw.data.dataset import Dataset, Labels
from feddraw.data.dataset_by_name import open_dataset
from feddraw.data.image_summary import BINS, CELLS, FEWEST_PATIENTS, ImageSummary, summary_of
from feddraw.experiment.run_preparation import open_experiment_data
from feddraw.experiment.running import run
from feddraw.results.run_folder import RunFolder
from feddraw.system.file_reading import read_json
from small import small
from test_imaging import save_dicom
from typed import typed

EXPERIMENT = small(rounds=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("kinds") / "run"
    run(EXPERIMENT, place)
    return place


def a_phantom() -> NDArray[np.uint8]:
    dataset = open_experiment_data(EXPERIMENT)
    return np.asarray(dataset.images[dataset.rows["test"][0]])


def predicted(folder: Path, images: Path, *options: str) -> tuple[int, list[dict[str, str]], str]:
    out = images.parent / "scores.csv"
    done = typed("predict", str(folder), str(images), "--out", str(out), *options, folder=images)
    with out.open() as file:
        return done.returncode, list(csv.DictReader(file)), done.stderr


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A phantom as it is, and as it should not be."""
    image = a_phantom()
    place = tmp_path / "images"
    place.mkdir()
    Image.fromarray(image).save(place / "0-right.png")
    Image.fromarray(255 - image).save(place / "1-inverted.png")
    Image.fromarray(np.full_like(image, 90)).save(place / "2-empty.png")
    Image.fromarray(image.astype(np.uint16) * 16).save(place / "3-dark.png")
    tinted = np.stack([image, image // 2, image // 3], axis=2)
    Image.fromarray(tinted).save(place / "4-colour.png")
    return place


SAID = ("", "looks inverted", "is empty", "levels are far outside", "it is in colour")


def test_what_is_unlike_the_training_images_is_scored_and_named(folder: Path, images: Path) -> None:
    code, rows, said = predicted(folder, images)
    assert code == 0
    for row, why in zip(rows, SAID, strict=True):
        assert why in row["problem"]
        assert bool(why) == bool(row["problem"])
        assert row["Edema"]
    assert "4 of 5 images are unlike the training images" in said
    assert "in doubt:" in said


def test_strict_refuses_them_and_scores_the_others(folder: Path, images: Path) -> None:
    code, rows, said = predicted(folder, images, "--strict")
    assert code == 1
    for row, why in zip(rows, SAID, strict=True):
        assert why in row["problem"]
        assert bool(row["Edema"]) == (not why)
    assert "not scored:" in said


def test_no_image_of_the_same_kind_is_in_doubt() -> None:
    dataset = open_dataset("phantom", size=28, options={"train": 300, "validation": 0, "test": 300})
    summary = summary_of(dataset, dataset.rows["train"])
    assert summary is not None
    test = [dataset.images[row] for row in dataset.rows["test"]]
    assert not any(summary.doubts(image) for image in test)
    inverted = [summary.doubts(255 - image) for image in test]
    assert sum("inverted" in " ".join(said) for said in inverted) > 0.9 * len(test)


def test_a_dicom_of_another_modality_is_named(tmp_path: Path) -> None:
    """Trained on a folder of DICOM files that say DX."""
    pytest.importorskip("pydicom")
    rng = np.random.default_rng(0)
    lines = ["path,Mass,split"]
    for number in range(60):
        pixels = rng.integers(500, 3500, (16, 16))
        save_dicom(tmp_path / f"{number}.dcm", pixels, Modality="DX")
        split = ("train", "train", "validation", "test")[number // 2 % 4]
        lines.append(f"{number}.dcm,{number % 2},{split}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    data = {"name": "folder", "path": str(tmp_path / "table.csv"), "size": 16}
    changes = {f"data.{key}": value for key, value in data.items() if key != "name"}
    experiment = small(rounds=1, data="folder", **changes, scenario="iid")
    run(experiment.with_settings({"scenario.clients": 2}), tmp_path / "run")
    recorded = read_json(RunFolder(tmp_path / "run").environment)["images"]
    assert recorded["modalities"] == ["DX"]
    new = tmp_path / "new"
    new.mkdir()
    pixels = rng.integers(500, 3500, (16, 16))
    for modality in ("DX", "MR"):
        save_dicom(new / f"{modality}.dcm", pixels, Modality=modality)
    _, rows, _ = predicted(tmp_path / "run", new)
    assert [row["problem"] for row in rows] == [
        "",
        "its modality is MR, the model was trained on DX",
    ]


# ----------------------------------------------------------------------------------------- summary


def dataset_of(images: NDArray[np.uint8]) -> Dataset:
    number = len(images)
    names = np.array([str(row) for row in range(number)])
    labels = Labels(np.zeros((number, 1), np.uint8), ("Mass",), names)
    nothing = np.zeros(0, np.intp)
    rows = {"train": np.arange(number), "validation": nothing, "test": nothing}
    return Dataset("made", images, labels, rows)


def with_patients(dataset: Dataset, patients: NDArray[np.str_]) -> Dataset:
    return replace(dataset, labels=replace(dataset.labels, patients=patients))


def test_the_summary_of_half_black_and_half_white_images_by_hand() -> None:
    images = np.zeros((40, 16, 16), np.uint8)
    images[:, :, 8:] = 255
    images[20:] = images[20:, :, ::-1]  # white to the left
    summary = summary_of(dataset_of(images), np.arange(40))
    assert summary is not None
    assert summary.histogram == (0.5, *[0.0] * (BINS - 2), 0.5)
    assert summary.picture == (126,) * CELLS**2  # 127.5 in steps of 7
    assert (summary.distance.mean, summary.distance.std) == (0, 0)
    assert summary.doubts(images[0]) == []
    black = np.zeros((16, 16), np.uint8)
    black[0, 0] = 255
    # half of its pixels are 31 bins of eight levels away from white
    assert summary._distance(black[None].astype(np.float32)) == pytest.approx(
        (0.5 - 1 / 256) * 31 * 8
    )
    assert "mean 1 of 255, theirs 128" in summary.doubts(black)[0]


def test_the_summary_survives_its_record_and_a_damaged_record_is_none() -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 20, 20), dtype=np.uint8)
    summary = summary_of(dataset_of(images), np.arange(50))
    assert summary is not None
    record = json.loads(json.dumps(summary.record()))
    assert ImageSummary.of_record(record) == summary
    for name in record:
        damaged = {key: value for key, value in record.items() if key != name}
        assert ImageSummary.of_record(damaged) is None
    assert ImageSummary.of_record(record | {"histogram": [1.0]}) is None
    assert ImageSummary.of_record(None) is None


def test_too_few_patients_to_hide_each_other_have_no_summary() -> None:
    dataset = dataset_of(np.zeros((FEWEST_PATIENTS, 16, 16), np.uint8))
    rows = np.arange(FEWEST_PATIENTS)
    assert summary_of(dataset, rows[:-1]) is None
    assert summary_of(dataset, rows) is not None
    assert summary_of(dataset, np.repeat(rows[:3], 100)) is None  # the same images again
    one_patient = np.array(["a"] * FEWEST_PATIENTS)
    assert summary_of(with_patients(dataset, one_patient), rows) is None


@pytest.mark.parametrize("of_one_patient", [1, 4])
def test_two_summaries_do_not_give_the_images_of_the_patient_that_only_one_has(
    of_one_patient: int,
) -> None:
    """Mean pictures and histograms, multiplied by their numbers of images and subtracted."""
    images = np.random.default_rng(0).integers(0, 255, (20 + of_one_patient, 64, 64), np.uint8)
    images[20:] = 4 * np.arange(64, dtype=np.uint8)  # from black to white
    patients = np.array([*map(str, range(20)), *["x"] * of_one_patient])
    dataset = with_patients(dataset_of(images), patients)
    parts = np.tile(4 * np.arange(64).reshape(8, 8).mean(axis=1), 8)
    up_to = np.linspace(1 / BINS, 1, BINS)
    with_them = summary_of(dataset, np.arange(len(images)))
    without = summary_of(dataset, np.arange(20))
    assert with_them is not None
    assert without is not None

    def left(name: str) -> NDArray[np.float64]:
        both = len(images) * np.array(getattr(with_them, name))
        return (both - 20 * np.array(getattr(without, name))) / of_one_patient

    assert np.abs(left("picture") - parts).mean() > 30
    assert np.corrcoef(left("picture"), parts)[0, 1] < 0.7
    assert np.abs(np.cumsum(left("histogram")) - up_to).mean() > 0.15


def test_grey_images_are_named_where_all_training_images_were_in_colour() -> None:
    colour = np.random.default_rng(0).integers(0, 256, (30, 16, 16, 3), dtype=np.uint8)
    summary = summary_of(dataset_of(colour), np.arange(30))
    assert summary is not None
    assert summary.in_colour == 1
    assert summary.channels == 3

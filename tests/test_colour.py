"""Images in colour from training to export: networks, engines, frozen parts, corruption, scores."""

from __future__ import annotations

import csv
import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

from feddraw.cli import app
from feddraw.data.corruption import Alteration
from feddraw.errors import UserError
from feddraw.experiment import prediction
from feddraw.experiment.run_preparation import open_experiment_data
from feddraw.experiment.running import run
from feddraw.experiment.settings import Experiment
from feddraw.experiment.trained_model import load_trained
from feddraw.export import run_export
from feddraw.results.recorded_run import read_run
from feddraw.training.loop import Examples
from feddraw.training.network_by_name import build_network
from test_imaging import save_dicom

SIZE = 16
IMAGES = 120


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spots that are red or blue on a ground that is light or dark: grey tells the second only."""
    folder = tmp_path_factory.mktemp("colour")
    rng = np.random.default_rng(0)
    rows: list[list[object]] = [["path", "Red", "Light"]]
    for number in range(IMAGES):
        red, light = rng.integers(0, 2, 2)
        image = np.full((24, 20, 3), 150 if light else 90, np.uint8)
        image[6:18, 4:16] = (200, 60, 60) if red else (60, 95, 200)  # of one luminance
        image += rng.integers(0, 20, image.shape, dtype=np.uint8)
        Image.fromarray(image).save(folder / f"{number:03d}.png")
        rows.append([f"{number:03d}.png", red, light])
    with (folder / "spots.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / "spots.csv"


def experiment(table: Path, **changes: object) -> Experiment:
    data = {"name": "folder", "path": str(table), "size": SIZE, "normalize": "measured"}
    colour = {"channels": 3, "fit": "pad", "shares": [0.5, 0.2, 0.3]}
    return Experiment(
        data={**data, **colour},
        scenario={"name": "iid", "clients": 2},
        model={"name": "compact", "growth": 8},
        rounds=2,
        engine="serial",
        training={"batch_size": 8, "epochs": 4, "lr": 0.01},
    ).with_settings(changes)


@pytest.fixture(scope="module")
def folder(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run") / "run"
    run(experiment(table), place)
    return place


def test_a_model_in_colour_learns_what_grey_does_not_show(folder: Path) -> None:
    found = read_run(folder)
    assert found.metrics.test.auc.per_class["Red"] > 0.9
    assert load_trained(folder).module.get_submodule("body.0").weight.shape[1] == 3


def test_serial_and_processes_have_the_same_bits_in_colour(
    table: Path, folder: Path, tmp_path: Path
) -> None:
    augmented = {"training.augment": True, "rounds": 1, "corruption.blur": "C1=1"}
    models = []
    for engine in ("serial", "processes"):
        changes = {**augmented, "engine": engine, "workers": 2}
        run(experiment(table, **changes), tmp_path / engine)
        models.append((tmp_path / engine / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_batches_in_colour_are_normalised_with_channels_first() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 5, 3), dtype=np.uint8)
    examples = Examples(pixels, np.zeros((4, 1), np.float32), mean=0.5, std=0.25)
    images, _ = examples.batch(np.array([2, 0]))
    expected = (pixels[[2, 0]].transpose(0, 3, 1, 2) / 255 - 0.5) / 0.25
    assert np.allclose(images.numpy(), expected, atol=1e-5)
    assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("features", ["float32", "off"])
def test_a_frozen_part_takes_colour(table: Path, features: str, tmp_path: Path) -> None:
    frozen = {"model.frozen": "body", "data.features": features, "rounds": 1}
    done = run(experiment(table, **frozen), tmp_path / "run")
    assert np.isfinite(read_run(tmp_path / "run").metrics.test.auc.macro)
    assert done is not None


def test_files_in_colour_get_the_scores_that_the_run_gave_them(folder: Path, table: Path) -> None:
    dataset = open_experiment_data(experiment(table))
    names = dataset.labels.names[dataset.rows["test"]]
    paths = [table.parent / name for name in names]
    scored = prediction.predict_images(folder, prediction.find_images_to_predict(paths))
    kept = read_run(folder).predictions()
    assert np.allclose(scored.scores, kept.scores, atol=1e-6)


def test_exported_models_in_colour_give_the_scores_of_the_run(folder: Path, tmp_path: Path) -> None:
    formats = ["safetensors"]
    formats += ["onnx"] * run_export.installed("onnxruntime")
    formats += ["monai"] * (run_export.installed("monai") and run_export.installed("fire"))
    done = CliRunner().invoke(
        app, ["export", str(folder), "--out", str(tmp_path / "out"), "--formats", ",".join(formats)]
    )
    assert done.exit_code == 0, done.output
    about = json.loads((tmp_path / "out" / "safetensors" / "model.json").read_text())
    assert (about["channels"], about["fit"], about["levels"]) == (3, "pad", [])
    assert "(n, 3, 16, 16)" in about["input"]
    loaded = runpy.run_path(str(tmp_path / "out" / "safetensors" / "load.py"))
    assert loaded["network"](torch.zeros(1, 3, SIZE, SIZE)).shape == (1, 2)
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    assert "One image in colour (red, green, blue)" in card
    assert "with black beside it, to 16 × 16 pixels" in card


def test_corruption_alters_each_channel_alike() -> None:
    grey = np.random.default_rng(0).integers(0, 256, (3, 16, 16), dtype=np.uint8)
    colour = np.repeat(grey[..., None], 3, axis=3)
    change = Alteration(blur=1.5, gamma=0.7, contrast=0.8, crop=0.1)
    rng = np.random.default_rng(0)
    altered = change.altered_images(colour, rng)
    assert (altered == change.altered_images(grey, rng)[..., None]).all()


# ---------------------------------------------------------------------------------------- networks


class OneChannel(nn.Module):
    def __init__(self, classes: int, in_chans: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_chans, 4, 3)
        self.head = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.conv(x).mean((2, 3))
        scores: Tensor = self.head(features)
        return scores


def told(classes: int, in_chans: int = 1) -> nn.Module:
    return OneChannel(classes, in_chans)


def grey_only(classes: int) -> nn.Module:
    return OneChannel(classes, 1)


@pytest.mark.parametrize("name", ["compact", "plain", "test_colour:told"])
def test_networks_take_as_many_channels_as_images_have(name: str) -> None:
    for channels in (1, 3):
        module, _ = build_network(name, 2, {}, side=SIZE, channels=channels)
        assert module.eval()(torch.zeros(1, channels, SIZE, SIZE)).shape == (1, 2)


def test_densenet121_takes_colour_as_it_is() -> None:
    pytest.importorskip("monai")
    module, _ = build_network("densenet121", 2, {}, side=32, channels=3)
    image = torch.rand(1, 3, 32, 32)
    grey = image.mean(1, keepdim=True)
    module.eval()
    with torch.no_grad():
        assert not torch.equal(module(image), module(grey))
        assert torch.equal(module(grey), module(grey.expand(-1, 3, -1, -1)))


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("xrv_densenet121", {}, r"takes images with 1 channel.*set data\.channels = 1"),
        ("compact", {"in_channels": 1}, "takes images with 1 channel"),
        ("test_colour:grey_only", {}, "the network cannot take an image in colour of 16 × 16"),
    ],
)
def test_a_network_for_grey_refuses_colour_in_one_line(
    name: str, options: dict[str, object], says: str
) -> None:
    if name == "xrv_densenet121":
        pytest.importorskip("monai")
    with pytest.raises(UserError, match=says):
        build_network(name, 2, options, side=SIZE, channels=3)


# ---------------------------------------------------------------------------------- one grey scale


def test_one_picture_gets_one_score_in_every_format(table: Path, tmp_path: Path) -> None:
    """8-bit PNG, 16-bit PNG and DICOM with the window of the whole range, by a trained model."""
    pytest.importorskip("pydicom")
    run(experiment(table, **{"data.channels": 1}), tmp_path / "run")
    with Image.open(table.parent / "000.png") as picture:
        grey = np.asarray(picture.convert("L"))
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    twelve = np.rint(grey * (4095 / 255)).astype(np.uint16)
    Image.fromarray(grey).save(pictures / "a.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(pictures / "b.png")
    save_dicom(pictures / "c.dcm", twelve, window=(2048, 4096))
    save_dicom(pictures / "d.dcm", 4095 - twelve, "MONOCHROME1", window=(2048, 4096))
    scored = prediction.predict_images(
        tmp_path / "run", prediction.find_images_to_predict([pictures])
    )
    assert np.ptp(scored.scores, axis=0).max() <= 0.005

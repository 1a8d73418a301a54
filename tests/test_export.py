"""`feddraw export`: every format gives the run's own probabilities, and the card says what a user
must know.
"""

from __future__ import annotations

import csv
import json
import math
import runpy
import shutil
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from markdown_it import MarkdownIt
from PIL import Image
from typer.testing import CliRunner

from feddraw.analysis.diagnostic_measures import DiagnosticTest, Measured, ModelScores
from feddraw.cli import app
from feddraw.errors import RunFailed, UserError
from feddraw.experiment import prediction
from feddraw.experiment.run_preparation import open_experiment_data
from feddraw.experiment.running import run
from feddraw.experiment.settings import Experiment
from feddraw.export import run_export as exporting
from feddraw.export.model_card import _measured
from feddraw.results.recorded_run import RecordedRun, read_run
from small import small

EXPERIMENT = small(rounds=2, holdout=0.2, **{"keep.tail": 2})
needs_onnx = pytest.mark.skipif(
    not exporting.installed("onnxruntime"), reason="onnxruntime is missing"
)
needs_fire = pytest.mark.skipif(not exporting.installed("fire"), reason="fire or MONAI is missing")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("export")
    run(EXPERIMENT, place / "run")
    return place


def images() -> np.ndarray:
    dataset = open_experiment_data(EXPERIMENT)
    return dataset.images[dataset.rows["test"]]


def typed(*words: object):
    return CliRunner().invoke(app, ["export", *map(str, words)])


@needs_onnx
def test_onnx_gives_the_scores_that_the_run_kept_for_every_test_image(folder: Path) -> None:
    import onnxruntime

    done = typed(folder / "run", "--out", folder / "onnx", "--formats", "onnx")
    assert done.exit_code == 0, done.output
    session = onnxruntime.InferenceSession(folder / "onnx" / "onnx" / "model.onnx")
    (scores,) = session.run(None, {"pixels": images()[:, None].astype(np.float32)})
    assert np.abs(scores - read_run(folder / "run").predictions().scores).max() <= 1e-5
    about = json.loads(session.get_modelmeta().custom_metadata_map["feddraw"])
    assert about["findings"] == list(read_run(folder / "run").findings)
    checked = json.loads((folder / "onnx" / "check.json").read_text())["checks"][0]
    assert (checked["images"], checked["test_images"]) == (80, True)
    assert checked["difference"] <= 1e-5


def test_safetensors_load_in_ten_lines(folder: Path) -> None:
    done = typed(
        folder / "run", "--out", folder / "tail", "--formats", "safetensors", "--model", "tail"
    )
    assert done.exit_code == 0, done.output
    loader = folder / "tail" / "safetensors" / "load.py"
    assert len([line for line in loader.read_text().splitlines() if line]) <= 10
    found = runpy.run_path(str(loader))
    pixels = torch.from_numpy(images()[:, None].astype(np.float32))
    about = found["about"]
    with torch.no_grad():
        logits = found["network"]((pixels - 255 * about["mean"]) / (255 * about["std"]))
    expected = read_run(folder / "run").models["tail"].predictions().scores
    assert np.abs(torch.sigmoid(logits).numpy() - expected).max() <= 1e-5


@needs_fire
def test_monais_own_command_runs_the_bundle_on_new_images(folder: Path, tmp_path: Path) -> None:
    done = typed(folder / "run", "--out", folder / "monai", "--formats", "monai")
    assert done.exit_code == 0, done.output
    for script in (folder / "monai" / "monai" / "scripts").glob("*.py"):
        assert "from feddraw" not in script.read_text()
    new = tmp_path / "new"
    new.mkdir()
    for number, pixels in enumerate(images()[:3]):
        Image.fromarray(pixels).resize((60, 50)).save(new / f"{number}.png")
    (new / "broken.png").write_bytes(b"no image")
    words = [
        "run",
        "--config_file",
        "configs/inference.json",
        "--images",
        str(new),
        "--output",
        str(tmp_path / "s.csv"),
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "monai.bundle", *words],
        cwd=folder / "monai" / "monai",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    with (tmp_path / "s.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = prediction.predict_images(folder / "run", prediction.find_images_to_predict([new]))
    for row, scores, calls in zip(rows, expected.scores, expected.calls, strict=True):
        if row["problem"]:
            assert row["image"].endswith("broken.png")
            continue
        for place, name in enumerate(expected.findings):
            assert abs(float(row[name]) - scores[place]) <= 1e-5
            assert int(row[f"{name} call"]) == calls[place]


def test_the_card_says_what_a_user_must_know_and_no_name_of_a_site_unless_asked(
    folder: Path,
) -> None:
    options = ["--formats", "safetensors", "--licence", "CC BY 4.0"]
    assert typed(folder / "run", "--out", folder / "a", *options).exit_code == 0
    assert typed(folder / "run", "--out", folder / "b", *options, "--names").exit_code == 0
    plain, named = ((folder / one / "MODEL_CARD.md").read_text() for one in ("a", "b"))
    clients = read_run(folder / "run").ledger.clients
    assert all(f"| {client} |" in named and f"| {client} |" not in plain for client in clients)
    assert "| site 1 |" in plain
    for words in (
        "not a medical device",
        "Intended use",
        "synthetic images, no patients",
        "**Not stated:** what the model is meant for",
        "CC BY 4.0",
        "95 % CI over the site's own images",
        "0 also at a site that does not label it",
    ):
        assert words in plain
    for section in (
        "## Data",
        "## Findings, thresholds",
        "## Results per site",
        "## Aggregation weights",
        "## Licence",
    ):
        assert section in plain
    row = next(line for line in plain.splitlines() if line.startswith("| Pleural Effusion |"))
    assert row.count(" to ") == 6  # the threshold and five results, each with an interval
    area = report_area(read_run(folder / "run"), "Pleural Effusion")
    assert f"| {area.value:.3f} ({area.low:.3f} to {area.high:.3f}) |" in row
    assert "(1.000 to 1.000)" not in plain


def test_the_card_has_the_users_words_for_images_and_use(folder: Path) -> None:
    shutil.copytree(folder / "run", folder / "skin")
    settings = folder / "skin" / "experiment.toml"
    words = settings.read_text().replace('images = ""', 'images = "photographs of skin"')
    settings.write_text(words.replace('use = ""', 'use = "sorting of referrals | by nurses"'))
    done = typed(folder / "skin", "--out", folder / "c", "--formats", "safetensors")
    assert done.exit_code == 0, done.output
    card = (folder / "c" / "MODEL_CARD.md").read_text()
    assert "that scores photographs of skin for 5 findings" in card
    assert "sorting of referrals \\| by nurses" in card
    assert "radiograph" not in card
    assert "Not stated:" not in card


def test_the_card_has_the_test_images_of_a_site_that_was_no_client(tmp_path: Path) -> None:
    """Away has one training image, too few for a client, and twelve of its images are tested."""
    rows = []
    for number, site in enumerate(["East"] * 40 + ["North"] * 40 + ["Away"] * 13):
        Image.new("L", (16, 16), 2 * number).save(tmp_path / f"{number}.png")
        tested = number % 5 == 0 if site != "Away" else number > 80
        split = "test" if tested else "validation" if number % 5 == 1 else "train"
        rows.append(f"{number}.png,{split},{site},{number % 2}")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["path,split,site,Edema", *rows]) + "\n")
    changes = {"data": str(table), "data.size": 16, "scenario": "by_site", "rounds": 1}
    own_images = Experiment().with_settings(
        changes | {"model.growth": 4, "training.epochs": 1, "engine": "serial"}
    )
    run(own_images, tmp_path / "run")
    options = ["--formats", "safetensors"]
    assert typed(tmp_path / "run", "--out", tmp_path / "a", *options).exit_code == 0
    assert typed(tmp_path / "run", "--out", tmp_path / "b", *options, "--names").exit_code == 0
    plain, named = ((tmp_path / one / "MODEL_CARD.md").read_text() for one in ("a", "b"))
    assert "| site 3 (no client) | 12 |" in plain
    assert "Away" not in plain
    assert "| Away (no client) | 12 |" in named
    assert "| East | 8 |" in named


def report_area(run: RecordedRun, finding: str) -> Measured:
    """The AUC and its interval as the report has them."""
    test = run.predictions("test")
    assert test is not None
    place = run.findings.index(finding)
    images = np.arange(len(test.truth))
    patients = images if test.patients is None else test.patients
    scores, truth = test.scores[:, place], test.truth[:, place]
    return DiagnosticTest([ModelScores.of_known(scores, truth, patients, math.nan)]).auc()


def test_the_card_has_no_interval_where_a_single_image_has_the_finding() -> None:
    scores = np.linspace(0.1, 0.9, 8)
    truth = np.eye(1, 8, 3, dtype=np.int64)[0]
    area = DiagnosticTest([ModelScores.of_known(scores, truth, np.arange(8), math.nan)]).auc()
    assert _measured(area) == f"{area.value:.3f}"


HEADING = "x`\n\n# Approved for clinical use\n\n<img src=x onerror=alert(1)>"
CODE = "$open('evaluated', 'w')"


def hostile_run(folder: Path, to: Path) -> Path:
    """The run with names that a stranger chose: of its scenario, its data, its clients and its first
    finding.
    """
    shutil.copytree(folder / "run", to)
    recorded = read_run(to)
    names = {client: f"{HEADING} {client}" for client in recorded.ledger.clients}
    settings = tomllib.loads((to / "experiment.toml").read_text())
    settings["scenario"]["name"] = HEADING
    settings["data"]["name"] = HEADING.replace(".", "")
    for key in ("sizes", "positives"):
        by_client = settings["partition"][key]
        settings["partition"][key] = {names[client]: by_client[client] for client in names}
    (to / "experiment.toml").write_text(tomli_w.dumps(settings))
    metrics = (to / "metrics.json").read_text()
    old = json.dumps(recorded.findings[0])
    (to / "metrics.json").write_text(metrics.replace(old, json.dumps(CODE)))
    with (to / "weights.csv").open(newline="") as file:
        rows = [[names.get(cell, cell) for cell in row] for row in csv.reader(file)]
    with (to / "weights.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return to


def test_names_of_a_strangers_run_are_only_names_in_its_card(folder: Path, tmp_path: Path) -> None:
    run_folder = hostile_run(folder, tmp_path / "run")
    options = ["--formats", "safetensors", "--names"]
    done = typed(run_folder, "--out", tmp_path / "out", *options)
    assert done.exit_code == 0, done.output
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    tokens = MarkdownIt("commonmark").enable("table").parse(card)
    titles = [
        inside.content for opening, inside in pairwise(tokens) if opening.type == "heading_open"
    ]
    assert titles[0] == "Model card"
    assert not any("Approved" in title for title in titles)
    inline = [child for token in tokens for child in token.children or []]
    assert not [token for token in [*tokens, *inline] if token.type.startswith("html")]
    assert card.count("onerror") >= 3  # shown as text, of the scenario and of the clients


@needs_fire
def test_the_name_of_a_finding_is_not_evaluated_by_monai(folder: Path, tmp_path: Path) -> None:
    from monai.bundle import ConfigParser

    run_folder = hostile_run(folder, tmp_path / "run")
    done = typed(run_folder, "--out", tmp_path / "out", "--formats", "monai")
    assert done.exit_code == 0, done.output
    bundle = tmp_path / "out" / "monai"
    parser = ConfigParser()
    parser.read_meta(bundle / "configs" / "metadata.json")
    parser.read_config(bundle / "configs" / "inference.json")
    parser.parse()
    texts = [item.get_config() for item in parser.ref_resolver.items.values()]
    assert not [text for text in texts if isinstance(text, str) and "evaluated" in text]
    described = json.loads((bundle / "models" / "model.json").read_text())
    assert described["findings"][0] == CODE


def test_without_the_data_the_check_uses_random_images_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise UserError("no file or folder mine.csv")

    monkeypatch.setattr(exporting, "open_experiment_data", gone)
    done = exporting.export_run(folder / "run", folder / "away", formats=["safetensors"])
    assert "mine.csv" in done.note
    assert not done.checks[0].test_images
    assert "random images" in (folder / "away" / "MODEL_CARD.md").read_text()
    assert (
        "mine.csv" not in (folder / "away" / "check.json").read_text()
    )  # it is passed on with the model


def test_a_file_that_scores_differently_stops_the_export(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(trained, place):
        return lambda pixels: np.full((len(pixels), len(trained.findings)), 0.5, np.float32)

    monkeypatch.setitem(exporting.FORMATS, "safetensors", wrong)
    with pytest.raises(RunFailed, match="do not use"):
        exporting.export_run(folder / "run", folder / "wrong", formats=["safetensors"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--formats", "onxx"), "did you mean onnx"),
        (("--formats", ""), "--formats names no format: choose from"),
        (("--model", "best"), "kept no model"),
        ((), "is already used"),
    ],
)
def test_mistakes_are_one_line(folder: Path, words: tuple[str, ...], says: str) -> None:
    (folder / "used").mkdir(exist_ok=True)
    (folder / "used" / "file").touch()
    out = folder / "used" if not words else folder / "unused"
    done = typed(folder / "run", "--out", out, *(words or ("--formats", "safetensors")))
    assert isinstance(done.exception, UserError)
    assert says in str(done.exception)
    assert not (folder / "unused").exists()

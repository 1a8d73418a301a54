"""From somebody's table to a report, as a new user would: unknown labels, different findings by
site, a tiny site.
"""

from __future__ import annotations

import csv
import hashlib
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from feddraw.cli import app
from feddraw.data.datasets.phantom import phantom
from feddraw.report import ReportSettings, write_report

SMALL = ["--rounds", "2", "--epochs", "1", "--set", "model.growth=8", "--set", "holdout=0.25"]


def typed(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 124 phantoms: North does not label Effusion, South does not label Edema, Hut has
    four images.
    """
    folder = tmp_path_factory.mktemp("ward")
    drawn = phantom(size=32, mix="chexpert", train=124, validation=0, test=0, seed=1)
    sites = ["North"] * 70 + ["South"] * 50 + ["Hut"] * 4
    (folder / "scans").mkdir()
    rows = []
    for number, (image, values, site) in enumerate(
        zip(drawn.images, drawn.labels.values, sites, strict=True)
    ):
        name = f"scans/{number:03d}.png"
        Image.fromarray(np.asarray(image)).save(folder / name)
        edema, effusion, heart = (("no", "yes")[value] for value in values[1:4])
        edema = "NA" if site == "South" else "uncertain" if number % 17 == 0 else edema
        patient = "" if number % 31 == 0 else f"P{number // 2}"
        age = 40 + number % 50
        rows.append([name, patient, site, edema, "" if site == "North" else effusion, heart, age])
    header = ["scan", "Patient ID", "hospital", "Edema", "effusion", "Cardiomegaly", "age"]
    with (folder / "ward.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return folder


def test_a_table_goes_from_init_to_a_report_with_the_same_bits_over_every_engine(
    ward: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    monkeypatch.chdir(ward)
    monkeypatch.setenv("COLUMNS", "200")
    said = re.sub(r"\s+", " ", typed("init", "ward.csv"))
    for expected in (
        "findings are Edema, effusion, Cardiomegaly; not used: age",
        "'no' as absent, 'yes' as present",
        "'uncertain' as uncertain, 'NA' as blank",
        "blank and uncertain labels count as unknown",
        "each site is a client: North",
        "left out, under 8 training images: Hut",
        "effusion at North",
        "Edema at South",
        "images have no patient id: each counts as a separate patient",
    ):
        assert expected in said, said
    settings = tomllib.loads((ward / "ward.toml").read_text())
    assert settings["data"]["findings"] == ["Edema", "effusion", "Cardiomegaly"]
    assert settings["data"]["blank"] == settings["data"]["uncertain"] == "unknown"

    for engine in ("serial", "processes", "flower"):
        with pytest.warns(
            UserWarning, match="left out of the federation, under 8 training images: Hut"
        ):
            run = typed("run", "ward.toml", "--engine", engine, "--out", f"runs/{engine}", *SMALL)
        assert re.search(r"Edema( †)? +\d+ / \d+, \d+ unknown", run)
    sums = [
        hashlib.sha256((ward / "runs" / e / "model.safetensors").read_bytes())
        for e in ("serial", "processes", "flower")
    ]
    assert len({one.hexdigest() for one in sums}) == 1

    for method in ("fedavg", "alone"):
        typed(
            "run",
            "ward.toml",
            "--engine",
            "serial",
            "--method",
            method,
            "--out",
            f"runs/{method}",
            *SMALL,
        )
    write_report([ward / "runs"], settings=ReportSettings(replicates=100))
    text = (ward / "runs" / "report.md").read_text()
    assert "Test AUC and GM are computed on the common test split" in text
    assert "from all sites together" in text
    assert "Images and certainty by finding" in text
    assert re.search(r"\| Cardiomegaly †? ?\| \d+ / \d+ \|", text)
    assert "fewer than 10 positive or 10 negative test images" in text
    for site in ("North", "South"):
        assert re.search(
            rf"{site} with feddraw. On its own patients: .* vs training alone .* vs FedAvg"
            r" .*On all",
            text,
        )
    assert "mean of 3" in text

"""From images of one class each to a report, an export and predictions, as a new user would: four
folders, a column of words, and a column of grades.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import runpy
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from feddraw.cli import app

EXAMPLE = Path(__file__).parent.parent / "examples" / "own_data.py"
SMALL = ["--rounds", "2", "--epochs", "1", "--set", "model.growth=8", "--set", "training.lr=0.005"]


def typed(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == code, done.output
    return re.sub(r"\s+", " ", done.output)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 drawings by the example of the tutorial."""
    folder = tmp_path_factory.mktemp("drawn")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["own_data.py", "--classes"])
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    return folder


@pytest.fixture
def here(drawn: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(drawn)
    monkeypatch.setenv("COLUMNS", "200")
    return drawn


def test_four_folders_go_from_init_to_predictions_with_the_right_words(here: Path) -> None:
    said = typed("init", "own-classes/folders")
    assert "classes: the folders name exactly one of 4 for each image" in said
    assert re.search(r"normal \d+ \d+ \d+", said), "no class disappears"
    settings = tomllib.loads((here / "folders.toml").read_text())
    assert settings["data"]["classes"] == ["disc", "normal", "ring", "spot"]
    changes = ["rounds=2", "training.epochs=1", "model.growth=4", "scenario.clients=2"]
    typed(
        *("compare", "folders.toml", "--seeds", "1", "--out", "compared", "--workers", "2"),
        *(word for change in changes for word in ("--set", change)),
    )
    report = (here / "compared" / "report.md").read_text()
    for expected in (
        "balanced accuracy",
        "Calls by class",
        "called normal",
        "Cohen's kappa",
        "Images and certainty by class",
        "the class with the highest probability is called",
    ):
        assert expected in report, expected
    for wrong in ("GM ", "GM:", "each finding", "by finding", "at the thresholds"):
        assert wrong not in report, wrong
    with (here / "compared" / "report.csv").open() as file:
        header = next(csv.reader(file))
    assert header[3:] == ["auc", "balanced_accuracy", "accuracy", "f1", "kappa"]


def test_a_column_of_words_has_the_same_bits_over_every_engine_and_is_exported(here: Path) -> None:
    pytest.importorskip("flwr")
    said = typed("init", "own-classes/lesions.csv", "--out", "dx.toml")
    assert "classes: the column dx names exactly one of 4" in said
    assert "for other classes give --class-column NAME: grade" in said
    runs = {}
    for engine in ("serial", "processes", "flower"):
        out = f"runs/{engine}"
        typed("run", "dx.toml", "--engine", engine, "--out", out, *SMALL, "--set", "holdout=0.25")
        folder = here / out
        model = (folder / "model.safetensors").read_bytes()
        runs[engine] = (hashlib.sha256(model).hexdigest(), (folder / "metrics.json").read_text())
    assert len(set(runs.values())) == 1
    metrics = json.loads(runs["serial"][1])
    assert "gm" not in metrics["test"]
    assert np.shape(metrics["clients"]["North"]["holdout"]["confusion"]) == (4, 4)

    typed("export", "runs/serial", "--out", "exported", "--formats", "safetensors")
    card = (here / "exported" / "MODEL_CARD.md").read_text()
    assert "chooses one of 4 classes" in card
    assert "| called disc |" in card
    assert "finding" not in card.split("## Aggregation weights")[0].split("## Results per site")[0]
    description = json.loads((here / "exported" / "safetensors" / "model.json").read_text())
    assert description["classes"] == ["disc", "normal", "ring", "spot"]

    typed("predict", "runs/serial", "own-classes/folders/ring", "--out", "scores.csv")
    with (here / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        scores = [float(row[name]) for name in description["classes"]]
        assert sum(scores) == pytest.approx(1, abs=1e-5)
        assert row["class"] == description["classes"][int(np.argmax(scores))]


def test_grades_are_trained_under_secure_sums_and_as_findings_where_that_is_said(
    here: Path,
) -> None:
    said = typed(
        *("init", "own-classes/lesions.csv", "--class-column", "grade", "--out", "grade.toml")
    )
    assert "classes: the column grade names exactly one of 3" in said
    once = ["--engine", "serial", "--rounds", "1", "--epochs", "1", "--set", "model.growth=8"]
    secure = ["--set", "secure=true", "--method", "fedavg"]
    said = typed("run", "grade.toml", *once, *secure, "--out", "runs/secure")
    assert "balanced accuracy" in said
    said = typed("run", "grade.toml", *once, "--set", "data.task=findings", "--out", "runs/apart")
    assert re.search(r"test AUC GM", said)
    metrics = json.loads((here / "runs" / "apart" / "metrics.json").read_text())
    assert list(metrics["test"]["gm"]["per_class"]) == ["0", "1", "2"]


def test_a_report_leaves_out_runs_of_another_task(here: Path) -> None:
    said = typed("report", "runs/secure", "runs/apart", "--out", "both", "--replicates", "0")
    assert "report: both" in said
    text = (here / "both" / "report.md").read_text()
    assert "its task is" in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dx": lambda n: "disc" if n else "odd"}, "one image only of odd"),
        ({"hospital": lambda n: "A" if n % 2 else "B", "dx": lambda n: "disc" if n % 2 else "spot"},
         "A has one class only: "),
    ],
)  # fmt: skip
def test_what_cannot_be_learnt_is_one_line(
    here: Path, tmp_path: Path, change: dict[str, object], says: str
) -> None:
    with (here / "own-classes" / "lesions.csv").open() as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        row["grade"] = ""
        for column, value in change.items():
            row[column] = value(number)  # type: ignore[operator]
        if row["dx"] == "disc" and says.startswith("one") and number % 2:
            row["dx"] = "spot"
    with (here / "own-classes" / "odd.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    said = typed("init", "own-classes/odd.csv", "--out", str(tmp_path / "odd.toml"))
    assert says in said, said

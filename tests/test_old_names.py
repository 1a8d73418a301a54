"""Names of the version before: still read, with a warning that says the new name."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from feddraw.analysis import metrics
from feddraw.datasets.phantom import phantom
from feddraw.results.runs import read_run
from feddraw.training.settings import Training
from run_folders import make_run, scored


def test_a_data_set_has_findings_and_classes_is_their_old_name() -> None:
    dataset = phantom(size=28, train=4, validation=2, test=2)
    with pytest.warns(FutureWarning, match=r"Dataset\.classes is now Dataset\.findings"):
        assert dataset.classes == dataset.findings
    with pytest.warns(FutureWarning, match=r"Labels\.classes is now Labels\.findings"):
        assert dataset.labels.classes == dataset.findings


def test_modules_that_moved_are_found_under_their_old_names() -> None:
    sys.modules.pop("feddraw.metrics", None)
    with pytest.warns(FutureWarning, match=r"feddraw\.metrics is now feddraw\.analysis\.metrics"):
        assert importlib.import_module("feddraw.metrics").auc is metrics.auc
    with pytest.warns(FutureWarning, match=r"feddraw\.training\.Training is now feddraw\.training\.settings\.Training"):
        assert importlib.import_module("feddraw.training").Training is Training


def test_images_kept_back_are_read_under_their_old_name(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    file = path / "metrics.json"
    found = json.loads(file.read_text())
    found["clients"] = {"C1": {"held_out": scored(0.8, 0.7)}}
    file.write_text(json.dumps(found))
    assert read_run(path).test("auc", client="C1", part="holdout") == pytest.approx(0.8)

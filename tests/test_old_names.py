"""Imports and names that were documented before still work, and say what the thing is called now."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from feddraw import old_names
from feddraw.datasets.phantom import phantom
from feddraw.results.recorded_run import read_run
from run_folders import make_run, scored


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_an_old_module_is_the_new_one_with_a_warning() -> None:
    code = "import importlib\n" + "".join(
        f"old, new = importlib.import_module({old!r}), importlib.import_module({new!r})\n"
        "names = [name for name in vars(new) if not name.startswith('__')]\n"
        "assert names and all(getattr(old, name) is getattr(new, name) for name in names)\n"
        for old, new in old_names.MODULES.items()
    )
    found = python(code)
    assert not found.returncode, found.stderr
    for old, new in old_names.MODULES.items():
        assert f"{old} is now {new}" in found.stderr


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package in old_names.NAMES for name in old_names.NAMES[package]]
)
def test_an_old_name_is_found_with_a_warning(package: str, name: str) -> None:
    place = old_names.NAMES[package][name]
    with pytest.warns(FutureWarning, match=re.escape(f"{package}.{name} is now {place}.{name}")):
        assert getattr(import_module(package), name) is getattr(import_module(place), name)


def test_a_round_of_flowers_is_a_record_with_a_warning() -> None:
    found = python("from feddraw.flower import Round, RoundRecord\nassert Round is RoundRecord")
    assert not found.returncode, found.stderr
    assert "feddraw.flower.Round is now feddraw.flower.RoundRecord" in found.stderr


def test_what_never_was_there_is_not_found() -> None:
    with pytest.raises(ImportError):
        from feddraw.training import nothing  # noqa: F401
    with pytest.raises(ModuleNotFoundError):
        import feddraw.nothing  # noqa: F401


def test_a_data_set_has_findings_and_classes_is_their_old_name() -> None:
    dataset = phantom(size=28, train=4, validation=2, test=2)
    with pytest.warns(FutureWarning, match=r"Dataset\.classes is now Dataset\.findings"):
        assert dataset.classes == dataset.findings
    with pytest.warns(FutureWarning, match=r"Labels\.classes is now Labels\.findings"):
        assert dataset.labels.classes == dataset.findings


def test_images_kept_back_are_read_under_their_old_name(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    file = path / "metrics.json"
    found = json.loads(file.read_text())
    found["clients"] = {"C1": {"held_out": scored(0.8, 0.7)}}
    file.write_text(json.dumps(found))
    assert read_run(path).test("auc", client="C1", split="holdout") == pytest.approx(0.8)

"""A synthetic data set is one file: what it says about itself is enough for every other part."""

from __future__ import annotations

import sys
from textwrap import dedent

import pytest

from feddraw import catalog
from feddraw.cli.progress_bars import open_dataset_with_bar
from feddraw.cli.run import run_display
from feddraw.data import datasets
from feddraw.data.synthetic import is_synthetic
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.settings import Experiment
from feddraw.report.sections import first_screen
from feddraw.results.run_collection import collect_runs
from feddraw.study.cost import RunWork
from feddraw.study.plan import PlannedRun, is_file_data
from feddraw.tasks.findings import findings
from run_folders import make_run

NOISE = '''
    """Grey noise, of no patient."""

    import numpy as np

    from feddraw.data.dataset import Dataset, Labels

    SYNTHETIC = True


    def noise(
        size: int = 8, train: int = 60, validation: int = 20, test: int = 20, seed: int = 0
    ) -> Dataset:
        """Images of noise."""
        total = train + validation + test
        pixels = np.random.default_rng(seed).integers(0, 256, (total, size, size), dtype=np.uint8)
        values = (pixels.mean(axis=(1, 2)) > 127.5).astype(np.uint8)[:, None]
        splits = np.split(np.arange(total), [train, train + validation])
        return Dataset(
            "noise",
            pixels,
            Labels(values, ("Bright",), np.arange(total).astype(np.str_)),
            dict(zip(("train", "validation", "test"), splits, strict=True)),
            synthetic=SYNTHETIC,
        )
'''


@pytest.fixture
def noise(tmp_path, monkeypatch):
    """The data set `noise`, as if its file were in `data/datasets`."""
    folder = tmp_path / "datasets"
    folder.mkdir()
    (folder / "noise.py").write_text(dedent(NOISE), encoding="utf-8")
    monkeypatch.setattr(datasets, "__path__", [*datasets.__path__, str(folder)])
    catalog.names.cache_clear()
    yield "noise"
    catalog.names.cache_clear()
    sys.modules.pop("feddraw.data.datasets.noise", None)


def test_its_file_says_that_it_is_synthetic_and_a_path_or_foreign_code_is_not_asked(noise):
    assert is_synthetic(noise)
    assert is_synthetic("phantom")
    for other in ("nih", "folder", "", "scan.csv", "no_such_module:noise"):
        assert not is_synthetic(other)


def test_a_run_says_that_the_images_are_synthetic(noise, capsys):
    with run_display(Experiment(data=noise, scenario="iid")):
        pass
    assert "noise (synthetic)" in capsys.readouterr().out


def test_it_has_no_images_to_prepare_in_a_study_or_by_a_command(noise):
    planned = PlannedRun("a", Experiment(data=noise, scenario="iid"), {})
    assert not is_file_data(planned)
    opened = open_dataset_with_bar(noise, None, 8, None, clahe=True, skip_bad=False)
    assert opened.synthetic
    assert opened.size == 8


def test_its_number_of_images_follows_the_scenario_and_a_missing_mix_is_no_mistake(noise):
    _, settings = complete_settings(Experiment(data=noise, scenario="CHM-2")).section("data")
    phantoms = complete_settings(Experiment(data="phantom", scenario="CHM-2")).section("data")[1]
    assert settings["train"] == phantoms["train"] != 60
    assert "mix" not in settings
    assert (
        complete_settings(Experiment(data=noise, scenario="iid")).section("data")[1]["train"] == 60
    )


def test_the_work_of_a_run_is_counted_from_its_settings(noise):
    experiment = Experiment(data=noise, scenario="iid", rounds=3)
    work = RunWork.of_settings(experiment)
    training = experiment.training
    assert work is not None
    assert work.steps == 60 * training.epochs * 3 / training.batch_size
    assert work.evaluated == 3 * 20 + 20


def test_settings_of_files_do_not_come_along(noise):
    changed = Experiment(data={"name": "nih", "clahe": True}).with_settings({"data": noise})
    assert "clahe" not in changed.section("data")[1]


def test_a_report_says_that_no_patient_is_behind_its_numbers(noise, tmp_path):
    runs = tmp_path / "runs"
    make_run(runs / "noise", settings={"data.name": noise})
    task = findings()
    sentences = list(first_screen._disclaimers(collect_runs([runs]), task))
    assert any(sentence.startswith("Synthetic images, no patients") for sentence in sentences)
    make_run(runs / "own", seed=1, settings={"data.name": "folder"})
    sentences = list(first_screen._disclaimers(collect_runs([runs]), task))
    assert not any("Synthetic" in sentence for sentence in sentences)

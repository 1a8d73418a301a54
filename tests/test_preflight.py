"""A study before it begins: where its archives are, what is in its way, what it will cost; and when
it gives up.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from archives import chestmnist_archive, chexpert_archive
from feddraw.cli import app
from feddraw.data.image_settings import PreparationEstimate
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.run_preparation import open_experiment_data
from feddraw.experiment.settings import Experiment
from feddraw.study.plan import read_study
from feddraw.study.preflight import _full_disks, features_to_compute, preflight, survey_study
from feddraw.study.progress import StudyEvent
from feddraw.study.run_study import RepeatedFailure, prepare_study_data, run_study
from feddraw.study.timing_on_made_up_images import time_in_turn
from feddraw.system.machine import peak_memory

SCALE = 0.002
MATRIX = f"""
preset = "paper"
rounds = 2
method = ["feddraw", "fedavg", "moon"]
scenario = ["CHX-1", "CHX-7", "CHM-4"]
[model]
name = "compact"
growth = 8
[training]
batch_size = 16
[only."CH*"]
scenario.scale = {SCALE}
data.size = 28
"""


@pytest.fixture(scope="session")
def archives(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archives")
    return chexpert_archive(folder, SCALE), chestmnist_archive(folder, SCALE)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    for name in ("FEDDRAW_CHEXPERT", "FEDDRAW_CHESTMNIST", "FEDDRAW_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FEDDRAW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path):
    def write(text):
        (tmp_path / "matrix.toml").write_text(text)
        return tmp_path / "matrix.toml"

    return write


def places(archives):
    return {"chexpert": str(archives[0]), "chestmnist": str(archives[1])}


def paths_of(runs):
    return {
        run.label["scenario"]: run.experiment.section("data")[1].get("path", "") for run in runs
    }


# ----------------------------------------------------------------------------------------- the file


def test_an_archive_is_where_the_command_says_or_its_own_setting_or_the_file(file):
    text = (
        'preset = "paper"\nscenario = ["CHX-1", "CHM-1"]\n[paths]\nchexpert = "a"\nchestmnist ='
        ' "b.npz"\n'
    )
    assert paths_of(read_study(file(text))) == {"CHX-1": "a", "CHM-1": "b.npz"}
    assert paths_of(read_study(file(text), paths={"chexpert": "c"})) == {
        "CHX-1": "c",
        "CHM-1": "b.npz",
    }
    own = text + '[only."CHM-1"]\ndata.path = "own.npz"\n'
    assert paths_of(read_study(file(own))) == {"CHX-1": "a", "CHM-1": "own.npz"}
    assert paths_of(read_study(file(own), paths={"chestmnist": "typed"}))["CHM-1"] == "typed"


def test_the_environment_says_where_archives_are_when_nobody_else_does(
    file, archives, own_cache, tmp_path, monkeypatch
):
    monkeypatch.setenv("FEDDRAW_CHEXPERT", str(archives[0]))
    monkeypatch.setenv("FEDDRAW_CHESTMNIST", str(archives[1]))
    assert survey_study(read_study(file(MATRIX)), tmp_path / "out").obstacle_lines() == []


def test_settings_may_be_those_of_a_scenario_or_a_data_set_only(file):
    text = (
        'preset = "paper"\nscenario = ["CHX-1", "CHX-7", "CHM-1"]\n[only.chexpert]\ndata.carve_test'
        " = 0.1\n"
    )
    runs = read_study(
        file(text), {"CHX-7.scenario.scale": 0.5, "rounds": 3, "CH*.training.epochs": 1}
    )
    assert [run.experiment.section("data")[1].get("carve_test") for run in runs] == [0.1, 0.1, None]
    assert [run.experiment.section("scenario")[1]["scale"] for run in runs] == [1.0, 0.5, 1.0]
    assert {run.experiment.rounds for run in runs} == {3}
    assert {run.experiment.training.epochs for run in runs} == {1}


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("[paths]\nchexprt = 'a'", {}, "no 'chexprt' among the archives: did you mean chexpert"),
        ("[paths]\nchexpert = 3", {}, "[paths] has a line for each archive"),
        ("[only]\nrounds = 3", {}, "write settings of a family as a table"),
        ("[only.'CHX-8']\nrounds = 3", {}, "no run with a scenario or data set 'CHX-8'"),
        ("", {"CHM-7.rounds": 3}, "no run with a scenario or data set 'CHM-7'"),
        ("", {"wrong.key": 3}, "no 'wrong.key' among the settings"),
    ],
)
def test_a_mistake_about_paths_and_families_is_one_line(file, text, changes, message):
    with pytest.raises(UserError) as caught:
        read_study(file(f'scenario = "CHX-1"\n{text}'), changes)
    assert message in str(caught.value)


def test_where_the_archive_lies_is_no_setting_of_a_run(file):
    text = 'preset = "paper"\nscenario = "CHX-1"\n'
    here, there = (
        read_study(file(text), paths={"chexpert": place})[0]
        for place in ("/data/CheXpert", "D:/small")
    )
    assert here.key == there.key


def test_the_papers_file_needs_nothing_but_the_places_of_both_archives(request):
    runs = read_study(
        request.config.rootpath / "studies" / "paper.toml",
        paths={"chexpert": "A", "chestmnist": "B"},
    )
    assert len(runs) == 8 * 12 * 5
    some = runs[:96:5]
    assert {
        (run.label["scenario"][:3], run.completed.data["name"], run.completed.data["path"])
        for run in some
    } == {
        ("CHX", "chexpert", "A"),
        ("CHM", "chestmnist", "B"),
    }


# ---------------------------------------------------------------------------------------- obstacles


def test_a_scenario_that_does_not_fit_is_told_with_the_numbers_before_anything_is_prepared(
    file, archives, own_cache, tmp_path
):
    runs = read_study(file(MATRIX), {"chexpert.data.carve_test": 0.2}, paths=places(archives))
    (said,) = survey_study(runs, tmp_path / "out").obstacle_lines()
    assert said.startswith(
        "CHX-7 at scale 0.002 needs 384 images, the data has 307: use a scale of 0.0016"
    )
    assert said.endswith("(3 runs, the first CHX-7_feddraw_seed=0)")
    assert not own_cache.exists()
    assert not (tmp_path / "out").exists()


def test_every_obstacle_is_told_at_once(file, archives, own_cache, tmp_path):
    used = tmp_path / "out" / "CHM-4_moon_seed=0"
    used.mkdir(parents=True)
    (used / "letter.txt").write_text("mine")

    changes = {"chexpert.data.carve_test": 0.2, "CHX-1.training.device": "cuda:7"}
    runs = read_study(
        file(MATRIX),
        changes,
        paths={"chexpert": str(archives[0]), "chestmnist": str(tmp_path / "no")},
    )
    said = survey_study(runs, tmp_path / "out").obstacle_lines()
    for one, words in zip(
        said,
        ("holds something other", "no chestmnist.npz", "cuda:7", "CHX-7 at scale"),
        strict=True,
    ):
        assert words in one
    assert not own_cache.exists()


def test_a_site_that_is_not_there_is_told_also_where_the_first_run_alters_none(file, tmp_path):
    text = (
        'method = "uniform"\ndata = {name = "phantom", size = 28, train = 120, validation = 60,'
        " test = 60}\n"
    )
    text += 'scenario = {name = "quantity", clients = 3}\n[corruption]\nblur = ["", "C9=1"]\n'
    (said,) = survey_study(read_study(file(text)), tmp_path / "out").obstacle_lines()
    assert "C9" in said
    assert said.endswith("(1 run: quantity_uniform_blur=C9=1_seed=0)")


def test_the_command_refuses_a_study_with_obstacles_and_goes_on_when_told_to(
    file, archives, own_cache, tmp_path
):
    words = [
        "study",
        str(file(MATRIX)),
        "--out",
        str(tmp_path / "out"),
        "--data-chexpert",
        str(archives[0]),
    ]
    words += ["--data-chestmnist", str(tmp_path / "no.npz"), "--set", "CHX-*.data.carve_test=0.2"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0
    assert "cannot start, 2 problems" in str(done.exception) + done.output
    assert not own_cache.exists()


def test_a_preflight_says_what_a_study_costs(file, archives, own_cache, tmp_path):
    found = preflight(read_study(file(MATRIX), paths=places(archives)), tmp_path / "out", 1).table()
    assert found["obstacles"] == []
    assert (found["runs"], found["finished"]) == (9, 0)
    assert [one["to_prepare"] for one in found["data"]] == [384 + 120, 157 + 120]
    assert found["cache_bytes"] == (384 + 120 + 157 + 120) * 28 * 28 + (157 + 120) * 28 * 28
    assert found["scenarios"]["CHX-1"] == [40, 10, 10, 10]
    assert set(found["timed"]) == {"feddraw", "moon"}  # a step of FedAvg is one of FedDRAW
    assert found["timed"]["moon"]["step"] > found["timed"]["feddraw"]["step"]
    assert 0 < found["hours"] < 1
    assert found["memory_bytes_per_worker"] > 5e7
    assert not own_cache.exists()
    json.dumps(found, allow_nan=False)


def test_a_method_without_time_of_its_own_costs_what_it_adds_on_a_small_network():
    runs = [
        complete_settings(Experiment().with_settings({"method": name}))
        for name in ("fedavg", "moon", "feddyn")
    ]
    plain, moon, after = time_in_turn(
        [one.with_settings({"training.batch_size": 64}) for one in runs], 5, seconds=0
    )
    assert [plain.batch, moon.batch, after.batch] == [8, 0, 0]
    assert 1.2 * plain.step < moon.step < 4 * plain.step  # two more networks see each image
    assert after.step < moon.step  # the next method does not pay for it


# -------------------------------------------------------------------------------------- preparation


def test_prepared_images_are_found_again_wherever_the_archive_lies(
    file, archives, own_cache, tmp_path
):
    for run in read_study(file(MATRIX), paths=places(archives))[:3]:
        open_experiment_data(run.completed)
    shutil.copytree(archives[0], tmp_path / "elsewhere" / "chex")  # with the files' times
    shutil.copy2(archives[1], tmp_path / "renamed.npz")
    elsewhere = {
        "chexpert": str(tmp_path / "elsewhere" / "chex"),
        "chestmnist": str(tmp_path / "renamed.npz"),
    }
    moved = survey_study(read_study(file(MATRIX), paths=elsewhere), tmp_path / "new")
    assert moved.preparations == [
        PreparationEstimate(),
        PreparationEstimate(),
    ]


def test_a_changed_image_is_prepared_again(file, archives, own_cache, tmp_path):
    folder = tmp_path / "chex"
    shutil.copytree(archives[0], folder)
    runs = read_study(file(MATRIX), paths=places((folder, archives[1])))[:1]
    open_experiment_data(runs[0].completed)
    (folder / "valid.csv").touch()
    assert survey_study(runs, tmp_path / "new").opened.popitem()[1][1] == PreparationEstimate()
    next(folder.glob("train/*/*/*.jpg")).touch()
    assert survey_study(runs, tmp_path / "new").opened.popitem()[1][1].images == 384 + 120


def test_features_that_nobody_has_computed_are_counted_and_computed_before_the_first_run(
    file, archives, own_cache, tmp_path
):
    text = (
        MATRIX.replace("growth = 8", 'growth = 8\nfrozen = "body"') + "training.augment = false\n"
    )
    runs = [run for run in read_study(file(text), paths=places(archives)) if "CHM" in run.name]
    survey = survey_study(runs, tmp_path / "new")
    assert not survey.obstacles
    (before,) = features_to_compute(survey)
    assert before.images > 0
    assert before.seconds > 0
    assert before.bytes == before.images * 4 * 42
    said: list[str] = []
    assert prepare_study_data(runs, lambda what, *_: said.append(what)) == {}
    assert "features" in said
    (after,) = features_to_compute(survey_study(runs, tmp_path / "new"))
    assert (after.images, after.bytes) == (0, 0)


def test_a_small_disk_that_is_too_full_is_told_in_numbers_that_are_not_zero(tmp_path, monkeypatch):
    little = shutil.disk_usage(tmp_path)._replace(free=200_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: little)
    (line,) = _full_disks({tmp_path / "cache": 400_000, tmp_path / "runs": 300_000})
    assert "needs 0.7 MB and has 0.2 MB free" in line


def test_the_twelve_scenarios_on_frozen_features_are_eleven_methods_and_no_replication(request):
    file = request.config.rootpath / "studies" / "paper-frozen.toml"
    runs = read_study(file, paths={"chexpert": "A", "chestmnist": "B"})
    assert len(runs) == 11 * 12 * 5
    assert all(run.experiment.trains_on_features for run in runs)
    assert complete_settings(runs[-1].experiment).training.lr > 1e-5
    assert "not a replication" in file.read_text()


def test_the_learning_rate_on_frozen_features_is_chosen_on_the_same_network_and_scenarios(request):
    studies = request.config.rootpath / "studies"
    paths = {"chexpert": "A", "chestmnist": "B"}
    runs = read_study(studies / "paper-frozen.toml", paths=paths)
    candidates = read_study(studies / "paper-frozen-lr.toml", paths=paths)
    rates = {run.completed.training.lr for run in candidates}
    assert len(candidates) == 12 * len(rates)
    assert {run.completed.training.lr for run in runs} < rates
    assert {run.label["training.lr"] for run in candidates} == {f"{rate:g}" for rate in rates}
    rate = runs[0].completed.training.lr
    same_rate = {run.key for run in candidates if run.completed.training.lr == rate}
    assert same_rate < {run.key for run in runs}


# ---------------------------------------------------------------------------------------- giving up

FAILING = """
rounds = 1
seed = [0, 1, 2, 3, 4, 5, 6, 7]
method = "uniform"
data = "own_images:make"
"""


def test_a_cause_that_fails_run_after_run_stops_the_study(file, in_tmp):
    (in_tmp / "own_images.py").write_text(
        "import itertools\nnumber = itertools.count()\n"
        "def make(size):\n    raise ValueError(f'no room for {next(number)} images')\n"
    )
    kinds = [
        event.kind
        for event in run_study(read_study(file(FAILING), trust=True), in_tmp / "out", 1, [])
    ]
    assert (kinds.count("failed"), kinds.count("left out")) == (3, 5)


def test_causes_are_the_same_but_for_names_and_numbers_and_a_success_is_a_new_start():
    causes = RepeatedFailure(2)
    causes.note(StudyEvent("failed", "a_seed=0", "a_seed=0: 3 images are missing"))
    causes.note(StudyEvent("finished", "a_seed=1"))
    causes.note(StudyEvent("failed", "a_seed=2", "a_seed=2: 4 images are missing"))
    causes.note(StudyEvent("failed", "a_seed=3", "no memory"))
    assert not causes.hopeless
    causes.note(StudyEvent("failed", "a_seed=4", "no memory"))
    assert causes.hopeless
    patient = RepeatedFailure(0)
    for _ in range(9):
        patient.note(StudyEvent("failed", "a", "no memory"))
    assert not patient.hopeless


def test_a_process_is_counted_with_its_own_memory_not_its_parents() -> None:
    held = np.ones(1 << 25)  # 256 MB
    code = "from feddraw.system.machine import peak_memory; print(peak_memory())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 1 << 20 < int(said.stdout) < held.nbytes < peak_memory()

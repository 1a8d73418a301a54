"""Models kept beside that of the last round: the best validation round and the mean of the last
rounds.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from feddraw.errors import UserError
from feddraw.experiment.running import iterate, run
from feddraw.report import ReportSettings, write_report
from feddraw.results.recorded_run import read_run
from feddraw.results.run_folder import RunFolder
from small import small

KEPT = {"keep.best": True, "keep.tail": 2}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("kept") / "run"
    return run(small(**KEPT), folder)


def test_they_are_those_of_the_rounds_that_validation_and_the_settings_say(finished) -> None:
    curve = [result.metrics.validation.auc.macro for result in finished]
    models = finished.metrics.models
    assert models["best"].rounds == (int(np.argmax(curve)),)
    assert models["tail"].rounds == (1, 2)
    best, tail = finished.last.kept["best"], finished.last.kept["tail"]
    assert np.array_equal(best.params, finished.rounds[int(np.argmax(curve))].model.params)
    for name in ("params", "buffers"):
        pair = [getattr(result.model, name).astype(np.float64) for result in finished.rounds[1:]]
        assert np.array_equal(getattr(tail, name), ((pair[0] + pair[1]) / 2).astype(np.float32))
    assert np.array_equal(tail.counters, finished.last.model.counters)
    for name in ("best", "tail"):
        stored = load_file(RunFolder(finished.folder).model_file(name))
        arrays = finished.last.kept[name].arrays()
        assert all(
            np.array_equal(stored[key].ravel(), array.ravel()) for key, array in arrays.items()
        )


def test_each_is_judged_with_thresholds_and_scores_of_its_own(finished) -> None:
    written = json.loads((finished.folder / "metrics.json").read_text())["models"]
    found = read_run(finished.folder)
    assert list(found.models) == ["last", "best", "tail"]
    for name in ("best", "tail"):
        assert (
            written[name]["test"]["thresholds"].keys()
            == written[name]["test"]["auc"]["per_class"].keys()
        )
        assert found.models[name].predictions().scores.shape == found.predictions().scores.shape
    assert not np.array_equal(found.models["tail"].predictions().scores, found.predictions().scores)
    assert "chosen_by" in written["best"]


def test_the_run_itself_has_the_bits_that_it_has_without(finished, tmp_path: Path) -> None:
    plain = run(small(), tmp_path / "plain")
    assert np.array_equal(plain.last.model.params, finished.last.model.params)
    assert plain.metrics == replace(finished.metrics, models={})
    assert not (tmp_path / "plain" / "checkpoint" / "kept.safetensors").exists()
    assert not list((tmp_path / "plain").glob("model-*"))


@pytest.mark.parametrize("stop", [1, 2])
def test_an_interrupted_run_ends_with_the_same_models(finished, tmp_path: Path, stop: int) -> None:
    folder = tmp_path / "run"
    list(islice(iterate(small(**KEPT), folder), stop))
    run(small(**KEPT), folder, resume=True)
    for name in (
        "model-best.safetensors",
        "model-tail.safetensors",
        "metrics.json",
        "predictions.safetensors",
    ):
        assert (folder / name).read_bytes() == (finished.folder / name).read_bytes(), name


def test_worker_processes_keep_the_same_models(finished, tmp_path: Path) -> None:
    run(small(engine="processes", workers=2, **KEPT), tmp_path / "run")
    for name in ("model-best.safetensors", "model-tail.safetensors", "metrics.json"):
        assert (tmp_path / "run" / name).read_bytes() == (finished.folder / name).read_bytes(), name


def test_a_run_that_lost_what_it_kept_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    list(islice(iterate(small(**KEPT), folder), 2))
    (folder / "checkpoint" / "kept.safetensors").unlink()
    with pytest.raises(UserError, match=r"kept\.safetensors is missing or does not fit"):
        run(small(**KEPT), folder, resume=True)


def test_a_tail_longer_than_the_run_is_refused() -> None:
    with pytest.raises(UserError, match=r"keep\.tail must be 0 \(off\) or from 2 to the 3 rounds"):
        next(iter(iterate(small(**{"keep.tail": 4}))))


def test_clients_with_models_of_their_own_keep_the_last_only() -> None:
    with pytest.warns(UserWarning, match="one model per client"):
        last = run(small(method="alone", rounds=1, **{"keep.best": True})).last
    assert not last.kept
    assert not last.metrics.models


def test_the_report_shows_them_side_by_side(finished) -> None:
    write_report([finished.folder], settings=ReportSettings(replicates=50))
    page = (finished.folder / "report.md").read_text()
    section = page.partition("Which model?")[2]
    assert "None was chosen with test data" in section
    for words in (
        "last round",
        "best validation round",
        "mean of the last rounds",
        "highest validation AUC",
    ):
        assert words in section

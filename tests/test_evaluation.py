"""References beside the methods, models of the clients' own, folds by patient, and the scores that
are kept.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from feddraw.analysis import metrics
from feddraw.analysis.explain_weights import explain_run_weights
from feddraw.analysis.weights_document import explanation_document
from feddraw.cli.explain import show_explanation
from feddraw.cli.run import round_line
from feddraw.data.splits import refold
from feddraw.engines.serial import Serial
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.run_preparation import open_experiment_data, prepare
from feddraw.experiment.running import run
from feddraw.federation import Federation, federate
from feddraw.results.recorded_run import read_run
from feddraw.tasks.findings import findings
from small import small


def finished(tmp_path, **changes):
    results = list(run(small(**changes), tmp_path / "run"))
    return results, json.loads((tmp_path / "run" / "metrics.json").read_text()), tmp_path / "run"


def test_the_metrics_follow_from_the_scores_that_are_kept(tmp_path):
    _, found, folder = finished(tmp_path)
    kept = load_file(folder / "predictions.safetensors")
    with safe_open(folder / "predictions.safetensors", "np") as file:
        about = json.loads(file.metadata()["feddraw"])
    thresholds = metrics.choose_thresholds(kept["validation.scores"], kept["validation.truth"])
    again = findings().evaluate(
        kept["test.scores"], kept["test.truth"], about["classes"], thresholds
    )
    assert again.auc.macro == found["test"]["auc"]["macro"]
    assert again.gm.macro == found["test"]["gm"]["macro"]


def test_alone_every_client_has_a_model_of_its_own(tmp_path):
    _, found, folder = finished(tmp_path, method="alone")
    kept = load_file(folder / "predictions.safetensors")["test.scores"]
    areas = [client["test"]["auc"]["macro"] for client in found["clients"].values()]
    assert kept.ndim == 3
    assert len(kept) == len(areas) > 1
    assert found["test"]["auc"]["macro"] == pytest.approx(np.mean(areas))
    assert len(set(areas)) == len(areas)


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("alone", "each client went on from its own model"),
        ("centralised", "all images were in one place"),
    ],
)
def test_of_a_method_that_averages_nothing_no_weight_is_told(
    tmp_path: Path, method: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    results, _, folder = finished(tmp_path, method=method)
    assert round_line(results[0], averaged=False).endswith("no models averaged")
    settings = folder / "experiment.toml"  # its kind is told from its rules, not from its name
    settings.write_text(settings.read_text().replace(f'"{method}"', '"fedavg"'))
    explained = explain_run_weights(read_run(folder))
    document = explanation_document(explained)
    assert document["words"][0] == (
        f"No models were averaged ({why}), so there are no weights to explain."
    )
    assert "counted" not in " ".join(document["words"])
    assert {client["mean"] for client in document["clients"]} == {None}
    assert not document["equal"]["rounds"]
    assert not document["small"]["ahead"]
    show_explanation(explained)
    shown = capsys.readouterr().out
    assert "influence" not in shown


def test_alone_a_client_ends_where_a_federation_of_itself_ends():
    setup = prepare(small(method="alone", rounds=2))
    engine = Serial(setup.trainer)
    alone = Federation(setup.method, engine, setup.clients, rounds=2, seed=0)
    *_, last = federate(alone, setup.initial)
    own = setup.method.local.personal(last.model, engine.memory[0])

    itself = prepare(small(method="fedavg", rounds=2))
    first_only = Federation(
        itself.method, Serial(itself.trainer), itself.clients[:1], rounds=2, seed=0
    )
    *_, only = federate(first_only, itself.initial)
    assert np.array_equal(own.params, only.model.params)
    assert np.array_equal(own.buffers, only.model.buffers)


def test_centralised_trains_one_model_on_all_images(tmp_path):
    setup = prepare(small(method="centralised"))
    federated = prepare(small())
    assert setup.clients == ("all",)
    assert len(setup.training_rows[0]) == sum(map(len, federated.training_rows))
    _, found, _ = finished(tmp_path, method="centralised")
    assert found["test"]["auc"]["macro"] > 0.4


def test_test_metrics_by_round_are_there_when_asked_for(tmp_path):
    _, _, folder = finished(tmp_path, test_every_round=True)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert all(0 <= line["test"]["macro"] <= 1 for line in lines)


def test_every_image_is_tested_once_and_no_patient_is_on_two_sides():
    dataset = open_experiment_data(complete_settings(small()))
    folds = [refold(dataset, 5, fold) for fold in range(5)]
    tested = np.concatenate([one.rows["test"] for one in folds])
    assert sorted(tested) == list(range(len(dataset.labels)))
    groups = (
        dataset.labels.patients if dataset.labels.patients is not None else dataset.labels.names
    )
    for one in folds:
        sides = [set(groups[one.rows[part]]) for part in ("train", "validation", "test")]
        assert sum(map(len, sides)) == len(set(groups))
        assert sum(len(one.rows[part]) for part in one.rows) == len(dataset.labels)


def test_an_image_of_no_split_is_in_no_fold():
    dataset = open_experiment_data(complete_settings(small()))
    bad = dataset.rows["train"][3:9]
    dataset = replace(
        dataset, rows=dataset.rows | {"train": np.setdiff1d(dataset.rows["train"], bad)}
    )
    used = np.setdiff1d(np.arange(len(dataset.labels)), bad)
    for fold in range(5):
        assert np.array_equal(
            np.sort(np.concatenate([*refold(dataset, 5, fold).rows.values()])), used
        )


def test_the_fold_is_that_of_the_seed():
    rows = [prepare(small(folds=3, seed=seed)).dataset.rows["test"] for seed in (0, 1, 3)]
    assert np.array_equal(rows[0], rows[2])
    assert not np.array_equal(rows[0], rows[1])


def test_one_fold_is_refused():
    with pytest.raises(UserError, match="folds must be 0"):
        complete_settings(small(folds=1))

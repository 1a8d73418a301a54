"""Experiments as values and files, presets, mixtures, and every mistake in one line."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feddraw
from feddraw.data.datasets.phantom import phantom
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.device_placement import on_device
from feddraw.experiment.run_preparation import prepare, prepare_client_data
from feddraw.experiment.running import run
from feddraw.experiment.settings import Experiment, make_method
from feddraw.methods.feddraw import DualReputationAnnealing
from feddraw.methods.fedprox import Proximal
from feddraw.methods.scaffold import ScaffoldServer
from feddraw.study.cost import RunWork
from feddraw.study.plan import read_study
from feddraw.system.file_reading import read_json
from feddraw.system.file_writing import json_values
from small import small
from tiny import server_of, weighting_of


def test_the_laptop_preset_is_the_default() -> None:
    assert Experiment.preset("laptop") == Experiment()
    experiment = complete_settings(Experiment())
    assert experiment.data == {
        "name": "phantom",
        "mix": "chestmnist",
        "train": 3533,
        "validation": 1000,
        "test": 2000,
        "label_noise": 0.05,
        "seed": 0,
        "size": 32,
    }
    assert experiment.scenario == {
        "name": "CHM-2",
        "scale": 0.045,
        "construction": "concentration",
        "share": 0.65,
        "patient_disjoint": False,
    }
    assert (experiment.rounds, experiment.training.epochs, experiment.training.batch_size) == (
        15,
        2,
        64,
    )
    assert experiment.method["beta_max"] == 3.0
    assert experiment.method["reading"] == "reported"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scenario": "CHX-4"},
        {"scenario": {"name": "CHM-2", "scale": 0.5}, "data": "phantom", "seed": 3},
        {"data": {"name": "phantom", "seed": -1}, "seed": 7},
        {"method": "feddraw+feddyn", "seed": 2, "partition_seed": 5},
        {"model": {"name": "compact", "frozen": "body"}},
        {"secure": True, "engine": "serial"},
    ],
)
def test_a_complete_experiment_stays_as_it_is(settings: dict[str, Any]) -> None:
    """A run completes its settings at several places, and its folder is read back complete."""
    complete = complete_settings(Experiment(**settings))
    assert complete_settings(complete) == complete
    on_another_device = on_device(complete, "cpu")
    assert complete_settings(on_another_device) == on_another_device


def test_the_paper_preset_is_the_papers() -> None:
    paper = Experiment.preset("paper")
    training = paper.training
    assert (training.lr, training.weight_decay, training.label_smoothing, training.clip) == (
        1e-5,
        5e-3,
        0.05,
        5.0,
    )
    assert training.augment
    assert paper.section("model") == ("densenet121", {})
    assert paper.scenario == {"name": "CHM-2", "scale": 1.0}
    assert paper.data == {"name": "as-scenario", "size": 224, "clahe": True}
    elsewhere = paper.with_settings({"scenario": "CHX-4", "data": "chexpert"})
    assert elsewhere.scenario == {"name": "CHX-4", "scale": 1.0}
    assert elsewhere.data == {"name": "chexpert", "size": 224, "clahe": True}


def test_other_scenarios_than_the_papers_are_not_scaled_down() -> None:
    assert Experiment(scenario="iid").scenario == {"name": "iid", "scale": 1.0}
    assert Experiment().with_settings({"scenario": "iid"}).scenario == {"name": "iid", "scale": 1.0}


def test_settings_of_a_name_may_come_before_it() -> None:
    changed = Experiment().with_settings(
        {"method.mu": 0.5, "scenario.scale": 0.3, "method": "fedprox", "scenario": "iid"}
    )
    assert changed.section("method") == ("fedprox", {"mu": 0.5})
    assert changed.section("scenario") == ("iid", {"scale": 0.3})


def test_a_mixture_takes_the_weighting_of_one_and_the_training_of_the_other() -> None:
    method = make_method(Experiment(method={"name": "feddraw+fedprox", "beta_max": 2.0, "mu": 0.5}))
    assert isinstance(weighting_of(method), DualReputationAnnealing)
    assert weighting_of(method).annealing.beta_max == 2.0
    assert method.local == Proximal(0.5)
    assert isinstance(server_of(make_method(Experiment(method="feddraw+scaffold"))), ScaffoldServer)


def test_a_setting_that_both_halves_of_a_mixture_have_may_be_given_apart() -> None:
    both: Any = {"name": "fedadp+feddyn", "fedadp.alpha": 4.0, "feddyn.alpha": 0.1}
    method = make_method(Experiment(method=both))
    assert weighting_of(method).alpha == 4.0
    assert server_of(method).alpha == 0.1
    assert complete_settings(Experiment(method=both)).method == both | {"show": "sent"}


def test_an_experiment_survives_its_file(tmp_path: Path) -> None:
    import tomli_w

    experiment = complete_settings(small(method="feddraw+moon"))
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(experiment.table()))
    assert Experiment.read(file) == experiment


def test_a_file_may_not_name_code_unless_trusted(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('method = "os:getcwd"\n')
    with pytest.raises(UserError, match="add --trust"):
        Experiment.read(file)
    assert Experiment.read(file, trust=True).section("method")[0] == "os:getcwd"


MISTAKES = [
    ({"method": "fedporx"}, "no 'fedporx' among the methods: did you mean fedprox?"),
    ({"model": "compct"}, "did you mean compact?"),
    ({"scenario": "CHM-9"}, "no 'CHM-9' among the scenarios"),
    ({"data": "phantm"}, "did you mean phantom?"),
    ({"method.mu": 0.1}, "feddraw has no setting 'mu': it has beta_max, eta"),
    ({"method.eta": -1.0}, "eta must be a positive number, not -1.0"),
    ({"method.eta": math.nan}, "eta must be a positive number, not nan"),
    ({"method.eta": "big"}, "method.eta must be a number, not 'big'"),
    ({"method.reading": "reportd"}, "did you mean reported?"),
    ({"method": "feddraw+fedprox+moon"}, "mixes more than two methods"),
    (
        {"method": "scaffold", "method.option": "I"},
        "SCAFFOLD's option I does not fit update space under Adam",
    ),
    ({"rounds": 0}, "rounds must be at least 1, not 0"),
    ({"rounds": 1.5}, "rounds must be a whole number, not 1.5"),
    ({"rounds": True}, "rounds must be a whole number, not True"),
    ({"seed": -1}, "seed must be zero or more"),
    ({"workers": -1}, "workers must be zero or more"),
    ({"engine": "ray"}, "no 'ray' among the engines: choose from flower, processes, serial"),
    ({"holdout": 1.0}, "holdout must be a share"),
    ({"training.lr": 0.0}, "training.lr must be a positive number, not 0.0"),
    ({"training.lr": math.inf}, "training.lr must be a positive number"),
    ({"training.epochs": 0}, "training.epochs must be at least 1"),
    ({"training.batch_size": 1}, "training.batch_size must be at least 2, not 1"),
    ({"training.batch_size": 0}, "training.batch_size must be at least 2, not 0"),
    ({"training.momentum": 1.0}, "training.momentum must be from 0 to below 1"),
    ({"training.optimizer": "adamw"}, "training.optimizer must be one of adam, sgd"),
    ({"training.steps": 7}, "set training.work = 'steps' too"),
    ({"training.work": "images"}, "training.work must be one of epochs, steps"),
    ({"training.learning_rate": 0.1}, "training has no setting 'learning_rate'"),
    ({"round": 3}, "no 'round' among the settings: did you mean rounds?"),
    ({"epochs": 3}, "no 'epochs' among the settings: write training.epochs"),
    ({"batch-size": 8}, "write training.batch_size"),
    ({"clip": 2.0}, "write training.clip or gate.clip"),
    ({"size": 28}, "write data.size"),
    ({"rounds.x": 3}, "'rounds' is a single value"),
    ({"scenario.clients": 500}, "500"),
    ({"scenario.clients": 0}, "clients"),
    ({"data.size": 8}, "28 to 224 pixels, not 8"),
    ({"data.size": "big"}, "data.size must be a whole number of pixels, not 'big'"),
    ({"data.siz": 32}, "no 'siz' among the settings of data phantom: did you mean size?"),
    ({"model.growth": "x"}, "model.growth must be a whole number"),
    ({"model.classifier": "nose"}, "no 'nose' among the layers"),
    ({"method.layer": "nose"}, "no 'nose' among the layers"),
    ({"model": "os:getcwd"}, "model 'getcwd' cannot be called with classes"),
    ({"method": "nowhere.at.all:f"}, "cannot import 'nowhere.at.all'"),
    ({"method": "os:nothing"}, "module 'os' has no 'nothing'"),
    ({"method": "os:sep"}, "'os:sep' is no function, but of type str"),
    ({"method": ":x"}, "is not of the form package.module:function"),
]


@pytest.mark.parametrize(
    ("changes", "message"), MISTAKES, ids=[str(list(m[0].items())[-1]) for m in MISTAKES]
)
def test_a_mistake_is_one_line_and_leaves_no_folder(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(UserError) as caught:
        list(run(small(**changes), out))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not out.exists()


def test_a_client_with_too_few_images_for_a_step_is_named() -> None:
    with pytest.raises(UserError, match="too few for a training step"):
        prepare(small(holdout=0.98))


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_data_set_without_images_to_judge_by_is_refused(split: str) -> None:
    with pytest.raises(UserError, match=f"phantom has no {split} images"):
        prepare(small().with_settings({f"data.{split}": 0}))


def test_the_loop_yields_a_result_a_round_with_weights_that_sum_to_one() -> None:
    results = list(feddraw.run(small()))
    assert [result.round for result in results] == [0, 1, 2]
    for result in results:
        assert math.isclose(sum(result.weights.values()), 1.0, abs_tol=1e-12)
        assert 0 < result.metrics.validation.auc.macro < 1
    sizes = np.array([entry.size for entry in results[0].ledger])
    np.testing.assert_allclose(
        list(results[0].weights.values()), sizes / sizes.sum()
    )  # round 0 is the prior
    np.testing.assert_allclose(list(results[-1].weights.values()), 1 / 3)  # the last one uniform
    assert results[-1].metrics.test.evaluated
    assert not results[0].metrics.test.evaluated


def test_run_does_its_work_and_gives_the_result(tmp_path: Path) -> None:
    result = feddraw.run(small(), tmp_path / "run")
    assert (tmp_path / "run" / "metrics.json").is_file()
    assert [one.round for one in result] == [0, 1, 2]
    assert len(result) == 3
    assert result.last is result.rounds[-1]
    assert result.metrics == result.last.metrics
    again = feddraw.run(small(), tmp_path / "run", resume=True)
    written = read_json(tmp_path / "run" / "metrics.json")["test"]
    assert json_values(again.metrics.test.document()) == written
    assert again.metrics == result.metrics
    with pytest.raises(UserError, match="was finished before"):
        _ = again.last


def test_iterate_trains_a_round_when_it_is_asked_for(tmp_path: Path) -> None:
    rounds = feddraw.iterate(small(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert next(rounds).round == 0
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 1
    rounds.close()


def test_dir_shows_what_there_is() -> None:
    assert {"run", "iterate", "Experiment", "weights", "schedule", "__version__"} <= set(
        dir(feddraw)
    )
    assert all(getattr(feddraw, name) is not None for name in dir(feddraw))


def test_holdout_images_are_not_trained_on_and_are_reported_by_client() -> None:
    setup = prepare(small(holdout=0.25))
    for shard, train, held in zip(
        setup.partition.shards, setup.training_rows, setup.evaluator.holdout, strict=True
    ):
        assert len(train) + len(held) == len(shard)
        assert not set(train) & set(held)
    *_, last = run(small(holdout=0.25, rounds=1))
    assert set(last.metrics.clients) == set(setup.clients)
    assert last.metrics.clients["C1"].holdout.evaluated


@pytest.mark.parametrize("scenario", ["iid", "by_site"])
def test_a_patient_of_several_clients_is_kept_back_by_all_or_by_none(scenario: str) -> None:
    drawn = phantom(size=28, train=120, validation=20, test=20)
    number = np.arange(len(drawn.labels))
    sites = np.array(["A", "B"])[
        number % 2
    ]  # of three images each, so that all patients are at both
    labels = replace(drawn.labels, patients=(number // 3).astype(np.str_), sites=sites)
    data = prepare_client_data(
        small(holdout=0.25, scenario=scenario), replace(drawn, labels=labels)
    )
    owners = [
        set(number[np.concatenate(rows)] // 3) for rows in (data.training_rows, data.holdout_rows)
    ]
    assert not owners[0] & owners[1]
    for train, held in zip(data.training_rows, data.holdout_rows, strict=True):
        assert len(held) / (len(held) + len(train)) == pytest.approx(0.25, abs=0.15)


def test_equal_steps_give_every_client_the_same_number_of_steps() -> None:
    result = next(iter(run(small(**{"training.work": "steps", "training.steps": 7}))))
    assert [entry.steps for entry in result.ledger] == [7, 7, 7]


def test_equal_steps_are_by_default_as_many_as_epochs_give_on_average() -> None:
    epochs = next(iter(run(small(**{"training.epochs": 2}))))
    assert [entry.steps for entry in epochs.ledger] == [10, 4, 4]
    steps = next(iter(run(small(**{"training.work": "steps", "training.epochs": 2}))))
    assert [entry.steps for entry in steps.ledger] == [6, 6, 6]


def test_equal_steps_are_the_same_in_worker_processes_and_counted_by_the_cost_model() -> None:
    experiment = small(**{"training.work": "steps", "rounds": 1})
    (serial,) = run(experiment)
    (processes,) = run(replace(experiment, engine="processes", workers=1))
    assert (serial.model.params == processes.model.params).all()
    task = prepare(experiment)
    steps = sum(entry.steps for entry in serial.ledger)
    assert RunWork.of_task(task).steps == pytest.approx(steps)


def test_a_class_with_one_label_only_is_undefined_and_warned_of() -> None:
    with pytest.warns(UserWarning, match="only positives or only negatives in test data"):
        *_, last = run(small(rounds=1, **{"data.test": 3}))
    assert last.metrics.test.undefined


def test_a_section_without_a_name_has_that_of_a_section_left_out_in_every_command(
    tmp_path: Path,
) -> None:
    file = tmp_path / "e.toml"
    file.write_text("[model]\ngrowth = 4\n\n[method]\nbeta_max = 2.0\n")
    experiment = Experiment.read(file)
    (planned,) = read_study(file)
    assert experiment.section("model") == ("compact", {"growth": 4})
    assert experiment.section("method") == ("feddraw", {"beta_max": 2.0})
    assert planned.experiment == experiment

"""Experiment trackers behind one setting, `track`.

The door is tested with a tracker of the test's own. MLflow and Weights & Biases are tested offline,
with the real packages, where they are installed: `make test-track` does that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from feddraw.cli import app
from feddraw.cli.report import show_report_to_trackers, write_and_show_report
from feddraw.errors import UserError
from feddraw.experiment.running import iterate, run
from feddraw.experiment.verify import verify
from feddraw.methods.fedavg import fedavg
from feddraw.results.ledger_table import read_ledger
from feddraw.results.metrics import MacroMetric, SplitMetrics
from feddraw.results.round_log import RoundLine, read_round_log
from feddraw.results.trackers import TrackedRun, numbers_of_line, read_tracked
from feddraw.results.trackers.mlflow import metric_name
from feddraw.system.machine import installed
from small import small

HOW = "is not installed: `make test-track` installs it and runs these tests"
needs_mlflow = pytest.mark.skipif(not installed("mlflow"), reason=f"MLflow {HOW}")
needs_wandb = pytest.mark.skipif(not installed("wandb"), reason=f"Weights & Biases {HOW}")


class Recorded:
    """A tracker that remembers what it is shown; it raises where `broken` says so."""

    runs: list[Recorded] = []
    broken = ""

    def __init__(self, run: TrackedRun) -> None:
        self.run = run
        self.number = run.number or f"number-{len(self.runs)}"
        self.rounds: dict[int, dict[str, float]] = {}
        self.files: dict[str, list[str]] = {}
        self.ended: list[str] = []
        self.runs.append(self)

    def add(self, round: int, numbers: Mapping[str, float]) -> None:
        if self.broken == "add":
            raise OSError("the server\nis down")
        self.rounds.setdefault(round, {}).update(numbers)

    def add_files(self, name: str, files: Sequence[Path]) -> None:
        self.files[name] = [file.name for file in files]

    def close(self, *, failed: bool) -> None:
        self.ended.append("failed" if failed else "finished")


TRACK = "test_trackers:Recorded"


def report_to_trackers(folder: Path) -> None:
    show_report_to_trackers(write_and_show_report([folder / "run"], folder / "page"))


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    monkeypatch.setitem(sys.modules, "test_trackers", sys.modules[__name__])
    monkeypatch.setattr(Recorded, "runs", [])
    return Recorded.runs


def test_a_tracker_is_shown_settings_numbers_by_round_weights_by_site_and_the_model(
    tmp_path: Path, recorded: list[Recorded]
) -> None:
    results = run(small(track=TRACK, rounds=2), tmp_path / "run")
    [shown] = recorded
    assert shown.run.settings["rounds"] == 2
    assert shown.run.settings["training.lr"] == 0.001
    for result in results:
        numbers = shown.rounds[result.round]
        assert numbers["loss"] == result.loss
        assert numbers["validation/auc"] == result.metrics.validation.auc.macro
        weights = {f"weight/{name}": weight for name, weight in result.weights.items()}
        assert weights.items() <= numbers.items()
    assert "test/auc Edema" in shown.rounds[1]
    assert "test/auc Edema" not in shown.rounds[0]
    assert shown.files == {"model": ["model.safetensors", "experiment.toml", "metrics.json"]}
    assert shown.ended == ["finished"]


def test_a_resumed_run_is_the_same_run_at_the_tracker(
    tmp_path: Path, recorded: list[Recorded]
) -> None:
    begun = cast("Generator[Any]", iterate(small(track=TRACK, rounds=2), tmp_path / "run"))
    next(begun)
    begun.close()  # as a kill does, at the end of a round
    run(small(track=TRACK, rounds=2), tmp_path / "run", resume=True)
    first, second = recorded
    assert (list(first.rounds), list(second.rounds)) == ([0], [1])
    assert second.run.number == first.number
    assert (second.run.first_round, first.ended, second.ended) == (1, ["failed"], ["finished"])


def test_weights_that_the_server_does_not_see_are_not_shown(
    tmp_path: Path, recorded: list[Recorded]
) -> None:
    run(small(track=TRACK, rounds=3, secure=True), tmp_path / "run")
    names = recorded[0].rounds[1]  # the first and the last weigh by size, which is known
    assert "loss" in names
    assert not any(name.startswith(("weight/", "similarity/")) for name in names)


def test_a_tracker_that_fails_costs_one_warning_and_not_the_run(
    tmp_path: Path, recorded: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorded, "broken", "add")
    with pytest.warns(UserWarning, match="nothing more of this run: the server is down") as told:
        run(small(track=TRACK, rounds=2), tmp_path / "run")
    assert len([warning for warning in told if "shown nothing" in str(warning.message)]) == 1
    assert (tmp_path / "run" / "metrics.json").is_file()


@pytest.mark.parametrize("name", ["mlflow", "wandb", "tensorboard"])
def test_a_tracker_that_is_not_installed_costs_one_warning_and_not_the_run(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"feddraw.results.trackers.{name}.installed", lambda package: False)
    with pytest.warns(UserWarning, match=r"pip install 'feddraw\[track\]'") as told:
        run(small(track=name, rounds=2), tmp_path / "run")
    assert len([warning for warning in told if "feddraw[track]" in str(warning.message)]) == 1
    assert (tmp_path / "run" / "metrics.json").is_file()
    assert not (tmp_path / "run" / "tracked.json").exists()


def test_a_tracker_that_nobody_knows_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no 'mlfow' among the trackers: did you mean mlflow"):
        run(small(track="mlfow"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_verifying_a_run_shows_nothing(tmp_path: Path, recorded: list[Recorded]) -> None:
    run(small(track=TRACK, rounds=1), tmp_path / "run")
    assert verify(tmp_path / "run", trust=True).same
    assert len(recorded) == 1


def test_the_number_of_a_run_never_makes_a_report_import_somebodys_code(
    tmp_path: Path, recorded: list[Recorded]
) -> None:
    run(small(track=TRACK, rounds=1), tmp_path / "run")
    assert read_tracked(tmp_path / "run") == (TRACK, "number-0")
    report_to_trackers(tmp_path)
    assert len(recorded) == 1


@pytest.mark.parametrize(("options", "contacts"), [([], 0), (["--track"], 1)])
def test_a_report_contacts_a_tracker_only_when_it_is_asked_to(
    tmp_path: Path,
    recorded: list[Recorded],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    contacts: int,
) -> None:
    """The folder may come from another party, and says itself which tracker knows it."""
    monkeypatch.setattr("feddraw.results.trackers.mlflow.mlflow", Recorded)
    run(small(rounds=1), tmp_path / "run")
    note = {"tracker": "mlflow", "number": "theirs"}
    (tmp_path / "run" / "tracked.json").write_text(json.dumps(note))
    out = str(tmp_path / "page")
    done = CliRunner().invoke(
        app, ["report", str(tmp_path / "run"), "--out", out, "--replicates", "0", *options]
    )
    assert done.exit_code == 0, done.output
    assert [shown.files for shown in recorded] == [{"report": ["report.html"]}] * contacts


def test_every_metric_of_the_task_is_shown() -> None:
    kappa = MacroMetric(0.4, {})
    recall = MacroMetric(0.7, {"a": 0.6, "b": 0.8})
    split = SplitMetrics(
        auc=MacroMetric(0.9, {"a": 0.9}), more={"balanced_accuracy": recall, "kappa": kappa}
    )
    numbers = numbers_of_line(
        RoundLine(round=0, loss=1.0, validation=split, seconds={}, client_seconds={})
    )
    assert numbers["validation/kappa"] == 0.4
    assert numbers["validation/balanced_accuracy"] == 0.7
    assert numbers["validation/balanced_accuracy b"] == 0.8


def test_a_flower_strategy_shows_its_rounds_through_the_same_door(
    tmp_path: Path, recorded: list[Recorded]
) -> None:
    pytest.importorskip("flwr")
    from feddraw.flower import MethodStrategy
    from test_evaluation_record import SITES, Sites
    from test_flower_interface import arrays
    from test_flower_names import Keyed

    strategy = MethodStrategy(fedavg(), sites=SITES, folder=tmp_path / "run", track=TRACK)
    strategy.start(Keyed(Sites().app, [{}] * 3), arrays(), 2)
    [shown] = recorded
    assert shown.run.settings["method"] == str(fedavg())
    ledger = read_ledger(tmp_path / "run" / "weights.csv")
    for entry in ledger:
        assert shown.rounds[entry.round][f"weight/{entry.client}"] == entry.weight
    lines = read_round_log(tmp_path / "run" / "rounds.jsonl")
    assert [line.evaluations[0].metrics["auc"] for line in lines] == [0.7, 0.7]
    assert [shown.rounds[round]["site/North auc"] for round in (0, 1)] == [0.7, 0.7]
    assert shown.ended == ["finished"]


def test_a_strategy_without_a_folder_cannot_be_tracked() -> None:
    pytest.importorskip("flwr")
    from feddraw.flower import MethodStrategy

    with pytest.raises(UserError, match="needs a folder: give folder="):
        MethodStrategy(fedavg(), track="mlflow")


# ------------------------------------------------------------------------------- the real packages


def test_tensorboard_gets_loss_metrics_and_every_clients_weight(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    results = run(small(track="tensorboard", rounds=2), tmp_path / "run")
    seen = event_accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert {"loss", "validation/auc", "test/auc", "weight/C1", "similarity/C3"} <= set(
        seen.Tags()["scalars"]
    )
    shown = [(event.step, event.value) for event in seen.Scalars("weight/C1")]
    assert shown == [(r.round, pytest.approx(r.weights["C1"])) for r in results]


def test_without_the_setting_nothing_is_written(tmp_path: Path) -> None:
    run(small(rounds=1), tmp_path / "run")
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert not written & {"tensorboard", "wandb", "mlruns", "tracked.json"}


@needs_mlflow
def test_mlflow_gets_settings_numbers_weights_report_and_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'store'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    results = run(small(track="mlflow", rounds=2), tmp_path / "run")
    report_to_trackers(tmp_path)

    store = MlflowClient()
    experiment = store.get_experiment_by_name("feddraw")
    [seen] = store.search_runs([experiment.experiment_id])
    assert (seen.info.run_name, seen.info.status) == ("run", "FINISHED")
    assert seen.info.run_id == read_tracked(tmp_path / "run")[1]
    assert seen.data.params["method.name"] == "feddraw"
    weights = store.get_metric_history(seen.info.run_id, "weight/C1")
    assert [(m.step, m.value) for m in weights] == [(r.round, r.weights["C1"]) for r in results]
    area = store.get_metric_history(seen.info.run_id, "validation/auc")
    assert [m.value for m in area] == [r.metrics.validation.auc.macro for r in results]
    model = {file.path for file in store.list_artifacts(seen.info.run_id, "model")}
    assert "model/model.safetensors" in model
    report = [file.path for file in store.list_artifacts(seen.info.run_id, "report")]
    assert report == ["report/report.html"]


@needs_mlflow
def test_mlflow_takes_site_names_with_any_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'store'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = MlflowClient()
    number = store.create_run(store.create_experiment("names")).info.run_id
    for site in ("St. Olav's", "Klinikum Süd (A/B)", "..", "a\nb"):
        store.log_metric(number, metric_name(f"weight/{site}"), 0.5)
    assert len(store.get_run(number).data.metrics) == 4


def wandb_records(run_file: Path) -> dict[str, Any]:
    """What Weights & Biases holds ready to upload of a run."""
    from wandb.proto.wandb_internal_pb2 import Record

    config: dict[str, Any] = {}
    rounds: list[dict[str, float]] = []
    artefacts: dict[str, list[str]] = {}
    for data in leveldb_records(run_file.read_bytes()):
        record = Record.FromString(data)
        for item in record.run.config.update:
            config[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        row = {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        rounds += [row] if row else []
        artefact = record.request.log_artifact.artifact
        if not artefact.name:
            artefact = record.artifact
        if artefact.name:
            artefacts[artefact.type] = [entry.path for entry in artefact.manifest.contents]
    return {"config": config, "rounds": rounds, "artefacts": artefacts}


def leveldb_records(file: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's form, behind a head of 7 bytes: blocks of 32 KiB, in them
    parts with checksum, length and kind (1 whole, 2 first, 3 middle, 4 last).
    """
    place, whole = 7, b""
    while place + 7 <= len(file):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length = int.from_bytes(file[place + 4 : place + 6], "little")
        kind = file[place + 6]
        whole += file[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


@needs_wandb
def test_weights_and_biases_gets_settings_numbers_weights_report_and_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    results = run(small(track="wandb", rounds=2), tmp_path / "run")
    report_to_trackers(tmp_path)

    number = read_tracked(tmp_path / "run")[1]
    of_run, of_report = sorted((tmp_path / "run" / "wandb").glob(f"offline-run-*/*{number}.wandb"))
    seen = wandb_records(of_run)
    assert seen["config"]["method.name"] == "feddraw"
    for result in results:
        rows = [row for row in seen["rounds"] if row["round"] == result.round]
        numbers = {name: value for row in rows for name, value in row.items()}
        assert numbers["loss"] == pytest.approx(result.loss)
        assert numbers["weight/C1"] == pytest.approx(result.weights["C1"])
    assert "model.safetensors" in seen["artefacts"]["model"]
    assert wandb_records(of_report)["artefacts"]["report"] == ["report.html"]

"""Run folders: what is in them, what survives a kill, and what is refused."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import subprocess
import tomllib
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import pytest
import tomli_w
import torch
from safetensors.torch import load_file

import feddraw
from feddraw.errors import UserError
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import iterate, run
from feddraw.experiment.settings import Experiment
from feddraw.results.environment import environment
from feddraw.results.find_runs import find_run_folders
from feddraw.results.run_folder import RunFolder
from feddraw.system.file_writing import toml_values
from feddraw.training import network_by_name
from small import small
from typed import typed

KEPT = (
    "experiment.toml",
    "weights.csv",
    "metrics.json",
    "model.safetensors",
    "predictions.safetensors",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    list(run(small(method="scaffold"), folder))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in KEPT}


def test_a_run_leaves_the_files_of_the_contract(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names == {*KEPT, "environment.json", "rounds.jsonl", "checkpoint"}
    settings = tomllib.loads((finished / "experiment.toml").read_text())
    assert settings["method"] == {
        "name": "scaffold",
        "server_lr": 1.0,
        "option": "II",
        "space": "update",
        "weights": "uniform",
    }
    assert len(settings["partition"]["sha256"]) == 64
    assert sum(settings["partition"]["sizes"].values()) == 240
    assert all(
        len(counts) == len(settings["partition"]["findings"])
        for counts in settings["partition"]["positives"].values()
    )
    rounds = [json.loads(line) for line in (finished / "rounds.jsonl").read_text().splitlines()]
    assert [entry["round"] for entry in rounds] == [0, 1, 2]
    assert all(0 < entry["validation"]["gm"]["macro"] < 1 for entry in rounds)
    environment = json.loads((finished / "environment.json").read_text())
    assert environment["packages"]["torch"] == version("torch")


def test_the_ledger_has_a_line_for_every_client_and_round(finished: Path) -> None:
    with (finished / "weights.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = (
        "round,client,size,steps,prior,similarity,gamma,beta,reputation,weight,influence,status"
    )
    expected += ",proposed,allowed,clause,measured,variance,distance,q,q_expected,rho"
    assert list(rows[0]) == expected.split(",")
    assert [(row["round"], row["client"]) for row in rows] == [
        (str(t), f"C{i}") for t in range(3) for i in (1, 2, 3)
    ]
    for t in range(3):
        assert sum(
            float(row["influence"]) for row in rows if row["round"] == str(t)
        ) == pytest.approx(1)
    assert {row["status"] for row in rows} == {"weighted"}


def test_the_model_loads_with_plain_torch(finished: Path) -> None:
    module, _ = network_by_name.build_network("compact", 5, {"growth": 8})
    module.load_state_dict(load_file(finished / "model.safetensors"))
    assert module.state_dict()["body.1.num_batches_tracked"].dtype == torch.int64


def test_metrics_have_the_shape_of_the_contract(finished: Path) -> None:
    metrics = json.loads((finished / "metrics.json").read_text())
    assert metrics["round"] == 2
    for part in ("test", "validation"):
        expected = {"auc", "gm", "sensitivity", "specificity", "thresholds", "undefined"}
        assert set(metrics[part]) == expected
        assert set(metrics[part]["auc"]) == {"macro", "per_class"}


def test_equal_runs_give_equal_bytes(finished: Path, tmp_path: Path) -> None:
    list(run(small(method="scaffold", engine="processes", workers=2), tmp_path / "again"))
    again, once = contents(tmp_path / "again"), contents(finished)
    del again["experiment.toml"], once["experiment.toml"]  # the engine differs
    assert again == once


@pytest.mark.parametrize("rounds_done", [0, 1, 2])
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(
    finished: Path, tmp_path: Path, rounds_done: int
) -> None:
    folder = tmp_path / "run"
    list(islice(iterate(small(method="scaffold"), folder), rounds_done))
    list(run(small(method="scaffold"), folder, resume=True))
    assert contents(folder) == contents(finished)


def test_lines_behind_the_checkpoint_and_a_torn_line_are_dropped_on_resume(
    finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    list(islice(iterate(small(method="scaffold"), folder), 2))
    with (folder / "weights.csv").open("a") as ledger:
        ledger.write("2,C1,10,1,,,,,,0.1,0.1,weighted\n2,C2,1")
    with (folder / "rounds.jsonl").open("a") as log:
        log.write('{"round": 2, "lo')
    list(run(small(method="scaffold"), folder, resume=True))
    assert contents(folder) == contents(finished)
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 3


def test_a_run_killed_before_its_last_file_finishes_on_resume(
    finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / "metrics.json").unlink()
    (folder / "model.safetensors").unlink()
    assert list(run(small(method="scaffold"), folder, resume=True)) == []
    assert contents(folder) == contents(finished)


@pytest.mark.parametrize("method", ["feddraw", "moon", "feddyn", "fedadp"])
def test_methods_with_state_go_on_to_the_same_bytes(method: str, tmp_path: Path) -> None:
    list(run(small(method=method), tmp_path / "whole"))
    list(islice(iterate(small(method=method), tmp_path / "cut"), 1))
    list(run(small(method=method), tmp_path / "cut", resume=True))
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_resume_with_other_settings_is_refused(finished: Path) -> None:
    with pytest.raises(
        UserError, match=r"was run with rounds = 3, not 4: resume with the same settings"
    ):
        list(run(small(method="scaffold", rounds=4), finished, resume=True))
    with pytest.raises(UserError, match=r"was run with method.name = scaffold, not fedavg"):
        list(run(small(method="fedavg"), finished, resume=True))


def test_resume_with_another_engine_is_fine(tmp_path: Path, finished: Path) -> None:
    folder = tmp_path / "run"
    list(islice(iterate(small(method="scaffold"), folder), 1))
    list(run(small(method="scaffold", engine="processes", workers=2), folder, resume=True))
    assert (folder / "model.safetensors").read_bytes() == (
        finished / "model.safetensors"
    ).read_bytes()


def test_a_used_folder_is_refused_and_left_as_it_was(finished: Path) -> None:
    before = contents(finished)
    with pytest.raises(
        UserError, match=r"already used: choose another folder \(out\), or continue this run"
    ):
        list(run(small(), finished))
    assert contents(finished) == before


def test_a_folder_with_something_else_in_it_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="holds something other than a run"):
        list(run(small(), tmp_path, resume=True))


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "run"
    list(islice(iterate(small(), folder), 1))
    file = folder / "checkpoint" / "state.safetensors"
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(
        {"cut": content[:-50], "flip": content, "empty": b"", "text": b"not a checkpoint"}[damage]
    )
    with pytest.raises(UserError, match=r"state.safetensors is damaged: delete"):
        list(run(small(), folder, resume=True))


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = iterate(small(), folder)
    next(first)
    with pytest.raises(UserError, match="another process is using"):
        list(run(small(), folder, resume=True))
    first.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("how", "message"), [((), "is already used"), (("--resume",), "was run with method.name")]
)
def test_a_run_that_finds_its_folder_used_when_it_gets_the_lock_leaves_it_alone(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: tuple[str, ...],
    message: str,
) -> None:
    settings = Experiment.read(finished / "experiment.toml").with_settings({"method": "fedavg"})
    (tmp_path / "other.toml").write_text(tomli_w.dumps(toml_values(settings.table())))
    folder = tmp_path / "run"
    locked = RunFolder.locked

    def late(mine: RunFolder) -> AbstractContextManager[None]:
        shutil.copytree(finished, folder)  # another process begins and ends its run
        return locked(mine)

    monkeypatch.setattr(RunFolder, "locked", late)
    done = typed("run", "other.toml", "--out", "run", *how, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert contents(folder) == contents(finished)


def test_the_checkpoints_folder_is_on_the_disk_before_a_round_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, synced, to_disk = tmp_path / "above" / "run", [], os.fsync

    def fsync(handle: int) -> None:
        for place, inside in ((folder, "checkpoint"), (folder.parent, "run"), (tmp_path, "above")):
            if (place / inside).exists() and os.path.samestat(os.fstat(handle), place.stat()):
                synced.append((inside, (folder / "checkpoint" / "state.safetensors").exists()))
        to_disk(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    list(islice(iterate(small(), folder), 1))
    assert {("above", False), ("run", False), ("checkpoint", False)} <= set(synced)


@pytest.mark.parametrize("where", ["model", "state", "memory"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_checkpoint_with_numbers_that_are_not_finite_is_refused(
    tmp_path: Path, where: str, value: float
) -> None:
    list(islice(iterate(small(method="scaffold"), tmp_path / "run"), 1))
    folder, layout = RunFolder(tmp_path / "run"), prepare(small()).initial.layout
    checkpoint = folder.load_checkpoint(layout)
    assert checkpoint is not None
    if where == "model":
        checkpoint.model.params[-1] = value
    if where == "state":
        checkpoint = replace(checkpoint, state={**checkpoint.state, "server": {"length": value}})
    if where == "memory":
        next(iter(checkpoint.memory[0].values()))[0] = value
    folder.save_checkpoint(checkpoint)  # with the digest that belongs to it
    with pytest.raises(UserError, match=r"state.safetensors holds numbers that are not finite"):
        list(run(small(method="scaffold"), folder.path, resume=True))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot write to"):
        list(run(small(), tmp_path / "run"))


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to"):
        list(run(small(), tmp_path / "file" / "run"))


def test_settings_come_back_from_the_folder(finished: Path) -> None:
    assert Experiment.read(finished / "experiment.toml").table()["rounds"] == 3


def test_the_environment_names_the_commit_of_a_checkout() -> None:
    checkout = Path(__file__).parents[1]
    if not (checkout / ".git").exists() or not Path(feddraw.__file__).is_relative_to(checkout):
        pytest.skip("feddraw does not run from a git checkout")
    git = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert environment()["commit"] == git.stdout.strip()


def test_a_folder_of_another_user_is_no_empty_one(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may read everything
    with pytest.raises(UserError, match="permission denied"):
        find_run_folders([tmp_path])

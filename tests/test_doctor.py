"""`feddraw doctor`: what it calls broken, what it reckons, and that nothing it says is made up."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feddraw.cli import main
from feddraw.doctor import examination, machine_checks
from feddraw.doctor.device_trial import (
    DeviceTrial,
    TrialProcesses,
    TrialTask,
    TrialTooSlow,
    TrialTraining,
)
from feddraw.doctor.examination import LARGE_TASK, SMALL_TASK, MachineExamination, examine_machine
from feddraw.doctor.machine_checks import MachineCheck
from feddraw.doctor.study_start import (
    DeviceSpeed,
    StudyCost,
    extrapolated_speeds,
    fastest_start,
    method_settings_of,
    paper_runs,
    speeds_in_memory,
    study_cost,
)
from feddraw.errors import RunFailed
from feddraw.study.cost import RunWork, StepCost
from feddraw.study.plan import read_study
from feddraw.training.devices import WorkerPlace
from small import small

ROOT = Path(__file__).parent.parent
TINY = TrialTask("compact", 32, (("growth", 8),))


def speed(
    device: str = "cpu",
    task: TrialTask = SMALL_TASK,
    workers: int = 1,
    train: float = 10.0,
    reckoned: int = 2 * 10**9,
) -> DeviceSpeed:
    """Of workers that together train so many images a second, and test four times as many."""
    cost = step_cost(64 * workers / train, workers / (4 * train))
    return DeviceSpeed(device, task, workers, cost, reckoned)


def step_cost(step: float, evaluated_image: float) -> StepCost:
    return StepCost(
        step=step,
        batch=64,
        client=0.0,
        evaluated_image=evaluated_image,
        memory=10**9,
        timed_memory=10**9,
    )


# ----------------------------------------------------------------------------------------- a device


def test_a_played_device_computes_trains_and_is_timed_as_the_processor_is() -> None:
    here, there = DeviceTrial("cpu"), DeviceTrial("cpu:1")
    assert max(here.sums().values()) < 1e-5
    first, second = (trial.training(TINY, 4, 2) for trial in (here, there))
    assert first.digests == second.digests
    assert first.digests[0] == first.digests[1]
    assert second.distance(first) == 0
    longer = TrialTraining(np.float32(1.5) * first.move, first.digests, ())
    assert longer.distance(first) == pytest.approx(0.5, rel=1e-4)
    cost = there.cost(TINY, 2.0)
    assert cost.batch >= 8
    assert 0 < cost.evaluated_image < cost.step / 64
    assert 10**8 < cost.timed_memory <= cost.memory


def test_what_a_method_adds_to_a_step_is_measured() -> None:
    plain, moon = DeviceTrial("cpu").factors([("uniform", ()), ("moon", ())])
    assert 1 <= plain < moon  # two more networks see each image


def test_a_process_that_dies_fails_or_hangs_is_said_with_its_device() -> None:
    with TrialProcesses([WorkerPlace("cpu:3")]) as team:
        with pytest.raises(RunFailed, match="cpu:3: AttributeError"):
            team.ask("nothing of the kind")
        with pytest.raises(TrialTooSlow, match="cpu:3: no answer within 0 s"):
            team.ask("sums", patience=0)
        # not the late answer to what was asked before
        assert team.ask("training", TINY, 4, 1)[0].digests
        with pytest.raises(TrialTooSlow):
            team.ask("sums", patience=0)
        (worker,) = team._workers
        worker.pipe.poll(60)
        worker.process.kill()
        worker.process.join()
        worker.pipe.recv()  # what it said before
        with pytest.raises(RunFailed, match=r"cpu:3: a process was killed \(SIGKILL\)"):
            team.ask("sums")


# -------------------------------------------------------------------------------------- all devices


class Played:
    """A team whose answers are given."""

    answers: dict[str, Callable[[str], Any]] = {}

    def __init__(self, places: list[WorkerPlace]) -> None:
        self.places = places

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, question: str, *arguments: Any, patience: float = 0) -> list[Any]:
        return [self.answers[question](place.device) for place in self.places]


GOOD: dict[str, Callable[[str], Any]] = {
    "sums": lambda device: {"product": 1e-7, "mean": 0.0},
    "training": lambda device: TrialTraining(np.ones(3), ("a", "a"), ()),
    "cost": lambda device: step_cost(64 / (900.0 if device == "cuda:0" else 5.0), 1e-3),
    "factors": lambda device: [1.0] * 8,
}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MachineExamination]:
    """An examination of a machine with a GPU that answers as told."""
    memory = {"memory": 24 * 10**9, "free": 24 * 10**9}
    about = {
        "cuda:0": {"type": "cuda", "name": "A GPU", "capability": "8.0"} | memory,
        "cpu": {"type": "cpu"} | memory,
    }
    monkeypatch.setattr(
        examination, "survey_devices_apart", lambda names: {name: about[name] for name in names}
    )
    monkeypatch.setattr(examination, "devices_to_examine", lambda: ["cpu", "cuda:0"])
    monkeypatch.setattr(examination, "check_machine", lambda: [])
    monkeypatch.setattr(examination, "TrialProcesses", Played)
    monkeypatch.setattr(examination, "worker_memory", lambda experiment: 3 * 10**9)

    def examined(**answers: Callable[[str], Any]) -> MachineExamination:
        monkeypatch.setattr(Played, "answers", GOOD | answers)
        return examine_machine(studies={"paper": paper_runs()}, tasks=(SMALL_TASK, LARGE_TASK))

    return examined


def test_a_good_gpu_is_found_good_and_the_study_goes_there(
    gpu: Callable[..., MachineExamination],
) -> None:
    found = gpu()
    assert not found.broken
    said = {check.what: (check.state, check.said) for check in found.checks}
    assert said["cuda:0"][1].startswith("A GPU, compute capability 8.0, driver")
    assert said["cuda:0 against cpu"] == ("ok", "0.0e+00 apart after 2 steps (compact, 64 px)")
    assert {(one.device, one.workers > 1) for one in found.speeds} >= {
        ("cpu", False),
        ("cuda:0", False),
    }
    assert found.costs["paper"].table()["options"].startswith("--devices cuda:0 --workers ")
    assert found.costs["paper"].runs == 480
    json.dumps(found.table(), allow_nan=False)


@pytest.mark.parametrize(
    ("answers", "broken"),
    [
        (
            {"sums": lambda device: {"product": 1e-3 if device == "cuda:0" else 0.0}},
            ["cuda:0 sums"],
        ),
        (
            {"sums": lambda device: {"product": float("nan") if device == "cuda:0" else 0.0}},
            ["cuda:0 sums"],
        ),
        (
            {
                "training": lambda device: replace(
                    GOOD["training"](device), move=np.ones(3) * (1 + (device != "cpu"))
                )
            },
            ["cuda:0 against cpu"],
        ),
    ],
)
def test_a_gpu_that_computes_something_else_is_broken(
    gpu: Callable[..., MachineExamination], answers: dict[str, Any], broken: list[str]
) -> None:
    assert [check.what for check in gpu(**answers).broken] == broken


def test_a_gpu_that_fails_at_work_is_broken_and_the_others_are_examined(
    gpu: Callable[..., MachineExamination],
) -> None:
    def fail(device: str) -> Any:
        if device == "cuda:0":
            raise RunFailed("cuda:0: OutOfMemory: cuda:0 (24 GB) ran out of memory")
        return GOOD["cost"](device)

    found = gpu(cost=fail)
    assert "cuda:0 (24 GB) ran out of memory" in found.broken[0].said
    assert {one.device for one in found.speeds} == {"cpu"}


def test_bits_that_vary_on_a_gpu_are_a_note_that_names_the_operation(
    gpu: Callable[..., MachineExamination],
) -> None:
    def train(device: str) -> TrialTraining:
        good: TrialTraining = GOOD["training"](device)
        inexact = ("max_pool2d_with_indices_backward_cuda",)
        varying = replace(good, digests=("a", "b"), inexact=inexact)
        return varying if device == "cuda:0" else good

    found = gpu(training=train)
    (note,) = [check for check in found.checks if check.what == "cuda:0 repeats"]
    assert (note.state, "max_pool2d_with_indices_backward_cuda" in note.said) == ("note", True)


def test_no_time_is_a_note_not_a_fault(gpu: Callable[..., MachineExamination]) -> None:
    def slow(device: str) -> Any:
        raise TrialTooSlow(f"{device}: no answer")

    found = gpu(cost=slow)
    assert not found.broken
    assert not found.speeds
    assert (
        MachineCheck("paper", "note", "its network was not timed: increase --seconds")
        in found.checks
    )
    assert "increase --seconds" in next(
        check.said for check in found.checks if check.what == "cpu speed"
    )


def test_a_gpu_that_does_not_answer_is_broken_and_a_busy_processor_is_not(
    gpu: Callable[..., MachineExamination],
) -> None:
    def slow(device: str) -> Any:
        raise TrialTooSlow(f"{device}: no answer within 60 s")

    found = {
        check.what: check.state for check in gpu(sums=slow).checks if check.what.endswith("at work")
    }
    assert found == {"cpu at work": "note", "cuda:0 at work": "broken"}


# ----------------------------------------------------------------------------------------- the cost


def test_the_papers_matrix_is_that_of_its_file() -> None:
    file = [planned.experiment for planned in read_study(ROOT / "studies" / "paper.toml")]
    ours = paper_runs()
    key = [lambda run: (run.section("scenario")[0], run.section("method")[0], run.seed)]
    assert sorted(map(key[0], ours)) == sorted(map(key[0], file))
    assert (
        {TrialTask.of(run) for run in ours} == {TrialTask.of(run) for run in file} == {LARGE_TASK}
    )
    plain = [[run for run in runs if key[0](run)[1:] == ("fedavg", 0)] for runs in (ours, file)]
    ours_work, files_work = ({RunWork.of_settings(run) for run in runs} for runs in plain)
    assert ours_work == files_work


def test_a_runs_steps_and_images_are_counted_from_its_settings() -> None:
    run = small(rounds=3).with_settings({"training.epochs": 2, "training.batch_size": 32})
    assert RunWork.of_settings(run) == RunWork(240 * 2 * 3 / 32, 0, 80 * 3 + 80)
    assert RunWork.of_settings(run.with_settings({"training.work": "steps"})) is None
    part = paper_runs()[0]  # CHX-1 has 35,000 of 191,027 images
    assert RunWork.of_settings(part) == RunWork(35_000 * 2 * 15 / 64, 0, 202 * 15 + 518)
    assert RunWork.of_settings(run.with_settings({"data": "some/table.csv"})) is None


def test_the_cost_is_images_by_speed_and_methods_that_do_more_cost_more() -> None:
    run = small(rounds=3)
    speeds = [
        speed(task=TrialTask.of(run), train=10.0),
        speed(task=TrialTask.of(run), workers=2, train=16.0),
    ]
    found = study_cost([run] * 4, speeds, {method_settings_of(run): 1.5})
    assert found is not None
    one = 1.5 * 720 / 16 + 320 / 64
    assert found.seconds == pytest.approx(4 * one)
    assert found.longest == pytest.approx(2 * one)
    assert found.table()["options"] == "--workers 2"
    alone = study_cost([run], speeds, {})
    assert alone is not None
    assert alone.seconds == alone.longest  # the second worker has nothing to do
    assert study_cost([small(**{"model": "densenet121"})], speeds, {}) is None


def test_gpus_are_used_together_and_the_processor_only_where_it_is_faster() -> None:
    speeds = [
        speed(train=30.0),
        speed("cuda:0", train=20.0),
        speed("cuda:1", workers=2, train=25.0),
    ]
    found = fastest_start(SMALL_TASK, speeds)
    assert found is not None
    assert (found.options, found.train) == ("--devices cuda:0,cuda:1 --workers 3", 45.0)
    assert fastest_start(SMALL_TASK, [speed(train=50.0), *speeds]).options == "--workers 1"  # type: ignore[union-attr]


def test_several_workers_that_were_not_timed_gain_what_others_gain_if_memory_holds_them() -> None:
    timed = [
        speed(),
        speed(task=LARGE_TASK, train=1.0, reckoned=11 * 10**9),
        speed(workers=2, train=18.0),
    ]
    found = extrapolated_speeds(timed)
    (added,) = found[3:]
    assert (added.task, added.workers, round(added.train, 6)) == (LARGE_TASK, 2, 1.8)
    assert len(speeds_in_memory(found, {"cpu": 23 * 10**9})) == 4
    assert [one.task for one in speeds_in_memory(found, {"cpu": 20 * 10**9})] == [
        SMALL_TASK,
        LARGE_TASK,
        SMALL_TASK,
    ]


# -------------------------------------------------------------------------------------- the machine


def test_versions_are_those_of_the_constraints() -> None:
    pinned = dict(
        re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    )
    assert {
        name: pinned[name] for name in machine_checks.TESTED_VERSIONS
    } == machine_checks.TESTED_VERSIONS


def test_versions_that_differ_are_noted_and_those_that_cannot_work_are_broken() -> None:
    assert machine_checks.check_version("torch", "2.13.0", "2.13.4+cu128") is None
    assert machine_checks.check_version("torch", "2.13.0", "2.9.1") == MachineCheck(
        "torch", "note", "2.9.1, tested with 2.13.0"
    )
    assert machine_checks.check_version("torch", "2.13.0", "2.1.0") == MachineCheck(
        "torch", "broken", "2.1.0: feddraw needs 2.4 or later"
    )
    assert machine_checks.check_version("monai", "1.5.1", "").state == "note"  # type: ignore[union-attr]
    assert machine_checks.check_version("numpy", "2.4.6", "").state == "broken"  # type: ignore[union-attr]


def test_a_folder_that_cannot_be_written_to_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine_checks.check_writable("cache folder", tmp_path / "not" / "there").state == "ok"

    def refuse(**_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    found = machine_checks.check_writable("cache folder", tmp_path)
    assert found == MachineCheck(
        "cache folder", "broken", f"{tmp_path}: Permission denied; FEDDRAW_CACHE names another"
    )


def test_the_disk_is_measured_and_nothing_stays_on_it(tmp_path: Path) -> None:
    found = machine_checks.check_disk_speed(tmp_path, 0.5)
    assert min(found.numbers["write_mb_s"], found.numbers["read_mb_s"]) > 0
    assert not list(tmp_path.iterdir())
    assert machine_checks.check_shared_memory().state in ("ok", "note")


# -------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("note", 0), ("broken", 1)])
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_the_command_exits_with_one_for_what_is_broken(
    state: Any,
    code: int,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = MachineExamination(0.0, {}, [MachineCheck("cuda:0 sums", state, "as told")], [speed()])
    found.costs["paper"] = StudyCost(480, 0, 1e6, 1e4, {"--workers 2": 480})
    monkeypatch.setattr(examination, "examine_machine", lambda *_, **__: found)
    monkeypatch.setattr(sys, "argv", ["feddraw", "doctor", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    out, err = capsys.readouterr()
    if words:
        assert json.loads(out)["broken"] == ["cuda:0 sums"] * code
    else:
        assert (
            "paper: 480 runs, fastest here with --workers 2; about 12 days, the longest run 2.8 h"
            in out
        )
        assert ("1 broken: cuda:0 sums" in err) == bool(code)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_machine_without_a_gpu_has_one_device() -> None:
    assert examination.devices_to_examine()[0] == "cpu"
    assert not [name for name in examination.devices_to_examine() if name.startswith("cuda")]

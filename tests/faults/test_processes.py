"""Whole commands killed, cut off from their parent, and run side by side: seconds each, so `make
faults` runs them and `make test` does not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from feddraw.experiment.running import run
from feddraw.study.plan import read_study
from feddraw.study.results_table import ResultTable
from feddraw.study.run_study import run_study
from small import small
from test_results import contents
from test_study import TINY, rows

TESTS = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.toml").write_text(TINY)
    runs = read_study(folder / "tiny.toml")
    list(run_study(runs, folder / "out", 2, [ResultTable(folder / "out" / "runs.csv")]))
    return folder


def test_kill_nine_loses_at_most_the_round_under_way(tmp_path: Path) -> None:
    experiment: dict[str, Any] = {"rounds": 6, "engine": "processes", "workers": 2}
    list(run(small(**experiment), tmp_path / "whole"))
    code = (
        f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
        "from small import small\nfrom feddraw.experiment.running import run\n"
        f"if __name__ == '__main__': list(run(small(**{experiment}), sys.argv[1]))\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    folder = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, script, folder])
    log = folder / "rounds.jsonl"
    deadline = time.monotonic() + 120
    while (
        not (log.is_file() and len(log.read_text().splitlines()) >= 2)
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "metrics.json").exists()
    list(run(small(**experiment), folder, resume=True))
    assert contents(folder) == contents(tmp_path / "whole")


def test_a_killed_study_goes_on_and_ends_with_the_same_table(whole: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "feddraw",
        "study",
        str(whole / "tiny.toml"),
        "--out",
        str(tmp_path / "out"),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    first = tmp_path / "out" / "quantity_feddraw_seed=0" / "checkpoint"
    deadline = time.monotonic() + 60
    while not first.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "table: " in done.stdout
    assert rows(tmp_path / "out" / "runs.csv") == rows(whole / "out" / "runs.csv")
    models = [
        folder / "quantity_feddraw_seed=1" / "model.safetensors"
        for folder in (tmp_path / "out", whole / "out")
    ]
    assert models[0].read_bytes() == models[1].read_bytes()


def test_a_job_array_does_the_whole_study_between_its_tasks(whole: Path, tmp_path: Path) -> None:
    """The script for SLURM, as two plain processes at once."""
    script = TESTS.parent / "examples" / "slurm.sh"
    (tmp_path / "feddraw").write_text(f'#!/bin/sh\nexec {sys.executable} -m feddraw "$@"\n')
    (tmp_path / "feddraw").chmod(0o755)
    common = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_ARRAY_TASK_COUNT": "2",
    }
    command = ["bash", str(script), str(whole / "tiny.toml"), "--out", str(tmp_path / "out")]
    tasks = [
        subprocess.Popen(command, env=common | {"SLURM_ARRAY_TASK_ID": task}) for task in ("1", "2")
    ]
    assert [task.wait() for task in tasks] == [0, 0]
    shares = [rows(tmp_path / "out" / f"runs-{task}-of-2.csv") for task in (1, 2)]
    assert shares[0] | shares[1] == rows(whole / "out" / "runs.csv")


def test_two_studies_at_once_in_one_folder_with_one_table_keep_all_rows(
    whole: Path, tmp_path: Path
) -> None:
    tasks = []
    for method in ("feddraw", "uniform"):
        file = tmp_path / f"{method}.toml"
        file.write_text(TINY.replace('["feddraw", "uniform"]', f'"{method}"'))
        words = [
            "study",
            file,
            "--out",
            tmp_path / "out",
            "--done",
            tmp_path / "done.csv",
            "--workers",
            "1",
        ]
        tasks.append(
            subprocess.Popen([sys.executable, "-m", "feddraw", *words], stdout=subprocess.DEVNULL)
        )
    assert [task.wait(120) for task in tasks] == [0, 0]
    expected = rows(whole / "out" / "runs.csv")
    assert rows(tmp_path / "done.csv") == rows(tmp_path / "out" / "runs.csv") == expected


def test_a_worker_ends_when_its_parent_is_gone(in_tmp: Path) -> None:
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from small import small\n"
        "from feddraw.experiment.run_preparation import prepare\n"
        "from feddraw.engines.processes import Processes\n"
        "if __name__ == '__main__':\n"
        "    setup = prepare(small())\n"
        "    engine = Processes(setup.trainer, 2, setup.clients)\n"
        "    print(*[worker.process.pid for worker in engine._workers], flush=True)\n"
        "    time.sleep(60)\n"
    )
    Path("parent.py").write_text(code)
    with subprocess.Popen(
        [sys.executable, "parent.py", str(TESTS)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        time.sleep(2)  # they are alive and importing, or waiting for work
        parent.kill()
    gone, alive = psutil.wait_procs(workers, timeout=60)
    assert len(gone) == 2
    assert not alive

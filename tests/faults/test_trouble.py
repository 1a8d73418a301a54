"""A full disk, a folder gone read-only, workers that die or run out of memory: said in a line,
kept, and resumed.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest
import tomli_w

from feddraw.errors import RunFailed, UserError
from feddraw.experiment.running import iterate, run
from feddraw.system.file_writing import toml_values
from small import small

KEPT = ("weights.csv", "metrics.json", "model.safetensors")


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in KEPT}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    list(run(small(method="scaffold", rounds=4), folder))
    return folder


def mounted(folder: Path, options: str) -> bool:
    """Whether a small file system of our own could be made there."""
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return (
        os.geteuid() == 0
        and shutil.which("mount") is not None
        and not subprocess.run(words, check=False).returncode
    )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mounted(folder, "size=2m"):
        pytest.skip("a file system of our own needs root and mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=False)


def test_a_full_disk_is_said_in_a_line_and_the_run_goes_on_when_there_is_room(
    disk: Path, whole: Path
) -> None:
    folder = disk / "run"
    experiment = small(method="scaffold", rounds=4)
    list(islice(iterate(experiment, folder), 2))
    before = (folder / "checkpoint" / "state.safetensors").read_bytes()
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(
        RunFailed,
        match=r"cannot write .*: No space left on device; what was written before is kept",
    ):
        list(run(experiment, folder, resume=True))
    assert (folder / "checkpoint" / "state.safetensors").read_bytes() == before
    ballast.unlink()
    list(run(experiment, folder, resume=True))
    assert contents(folder) == contents(whole)
    assert not list(folder.rglob("*.part"))


def test_a_limit_on_the_size_of_files_is_said_in_a_line_and_the_run_goes_on_without(
    tmp_path: Path, whole: Path
) -> None:
    """What a full disk looks like where no file system can be made."""
    experiment = small(method="scaffold", rounds=4)
    folder = tmp_path / "run"
    list(islice(iterate(experiment, folder), 2))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(
            RunFailed, match=r"cannot write .*: File too large; what was written before is kept"
        ):
            list(run(experiment, folder, resume=True))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    list(run(experiment, folder, resume=True))
    assert contents(folder) == contents(whole)


def test_a_folder_gone_read_only_is_said_in_a_line(disk: Path, whole: Path) -> None:
    experiment = small(method="scaffold", rounds=4)
    folder = disk / "run"
    rounds = iterate(experiment, folder)
    next(rounds)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(
        UserError, match=r"cannot write .*: Read-only file system; what was written before is kept"
    ):
        next(rounds)
    with pytest.raises(UserError, match="is not a folder that you may write to"):
        list(run(experiment, folder, resume=True))
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    list(run(experiment, folder, resume=True))
    assert contents(folder) == contents(whole)


@pytest.fixture
def doomed(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return in_tmp


def healed(model: str) -> None:
    """The run goes on, in another engine, to the bytes of one that never failed."""
    Path("healed").touch()
    experiment = small(model=model, rounds=4)
    list(run(experiment, "r", resume=True))
    list(run(experiment, "s"))
    assert contents(Path("r")) == contents(Path("s"))


def test_a_worker_that_runs_out_of_memory_says_so_and_the_run_goes_on(doomed: Path) -> None:
    model = "hungry:memory"
    with pytest.raises(
        RunFailed, match=r"training client C\d failed: it ran out of memory: try fewer workers"
    ):
        list(run(small(model=model, rounds=4, engine="processes", workers=1), "r"))
    healed(model)


def test_a_worker_that_dies_is_one_line_with_its_client_and_how_to_go_on(doomed: Path) -> None:
    shutil.copy(Path(__file__).with_name("hungry.py"), doomed)
    (doomed / "small.toml").write_bytes(
        tomli_w.dumps(toml_values(small(rounds=4).table())).encode()
    )
    words = [
        "run",
        "small.toml",
        "--model",
        "hungry:death",
        "--engine",
        "processes",
        "--workers",
        "1",
        "--out",
        "r",
    ]
    words = [sys.executable, "-m", "feddraw", *words]
    failed = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert failed.returncode == 1, failed.stderr
    (said,) = failed.stderr.strip().splitlines()
    assert "a worker ended with code 9 while training client C" in said
    assert said.endswith("finished rounds are in r: continue with --resume")
    healed("hungry:death")

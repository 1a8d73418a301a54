"""Nothing that we write, rename or delete follows a link; files are whole; what is private is for
its owner only.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feddraw.cli import app
from feddraw.errors import UserError
from feddraw.experiment.running import iterate
from feddraw.results.run_folder import RunFolder
from feddraw.system import locks
from feddraw.system.file_writing import (
    append_to_log,
    make_folder,
    make_subfolder,
    open_file,
    write_whole,
)
from run_folders import make_run
from small import small

SECRET = b"export PATH=/home/me/bin\n"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file and a folder of the user's own, to which a stranger's links lead."""
    folder = tmp_path / "home"
    (folder / "Pictures").mkdir(parents=True)
    (folder / ".bashrc").write_bytes(SECRET)
    (folder / "Pictures" / "chm-9-sizes.svg").write_bytes(SECRET)
    return folder


def untouched(outside: Path) -> bool:
    files = {
        str(path.relative_to(outside)): path.read_bytes()
        for path in outside.rglob("*")
        if path.is_file()
    }
    return files == {".bashrc": SECRET, "Pictures/chm-9-sizes.svg": SECRET}


def said(*words: str | Path) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, UserError | SystemExit), (
        done.exception
    )
    return str(done.exception or "")


# -------------------------------------------------------------------------------------------- links


def test_a_report_writes_through_no_link(tmp_path: Path, outside: Path) -> None:
    stranger = make_run(tmp_path / "stranger", rounds=2)
    (stranger / "figures").mkdir()
    names = [
        "report.html",
        "report.md",
        "report.csv",
        "tables.tex",
        "figures/figures.json",
        "figures/chm-2-sizes.svg",
    ]
    for name in names:
        for planted in (name, f"{name}.part"):
            (stranger / planted).unlink(missing_ok=True)
            (stranger / planted).symlink_to(outside / ".bashrc")
        assert f"{Path(name).name} is a link and may lead out of its folder" in said(
            "report", stranger
        )
        assert untouched(outside)
        (stranger / name).unlink()
    assert said("report", stranger) == ""  # past all that is left behind under temporary names
    assert untouched(outside)


def test_a_report_neither_writes_to_a_linked_folder_nor_deletes_what_its_markdown_names(
    tmp_path: Path, outside: Path
) -> None:
    stranger = make_run(tmp_path / "stranger")
    (stranger / "figures").symlink_to(outside / "Pictures")
    (stranger / "report.md").write_text("![](figures/chm-9-sizes.svg)")
    assert "figures is a link" in said("report", stranger)
    assert untouched(outside)


def test_only_figures_that_a_manifest_says_are_ours_and_unchanged_are_removed(
    tmp_path: Path, outside: Path
) -> None:
    make_run(tmp_path / "runs" / "a", scenario="CHM-1", rounds=2)
    make_run(tmp_path / "runs" / "b", scenario="CHM-2", rounds=2)
    assert said("report", tmp_path / "runs", "--out", tmp_path / "page") == ""
    figures = tmp_path / "page" / "figures"
    (figures / "chm-2-sizes.svg").write_text("<svg>mine now</svg>")
    (figures / "chm-2-sizes.png").unlink()
    (figures / "chm-2-sizes.png").symlink_to(outside / ".bashrc")
    (tmp_path / "page" / "report.md").write_text(  # also names that no file can have
        f"![](figures/mine.svg) ![](figures/\0.svg) ![](figures/{'x' * 5000}.svg)"
        " ![](figures/..svg)"
    )
    (figures / "mine.svg").write_text("<svg/>")
    assert said("report", tmp_path / "runs" / "a", "--out", tmp_path / "page") == ""
    assert list(figures.glob("chm-1-*"))
    left = {path.name for path in figures.iterdir() if not path.name.startswith("chm-1")}
    assert left == {"figures.json", "chm-2-sizes.svg", "chm-2-sizes.png", "mine.svg"}
    assert untouched(outside)


LINKED = (
    "checkpoint",
    "tensorboard",
    "wandb",
    "tracked.json",
    "rounds.jsonl",
    "weights.csv",
    "metrics.json",
    "model.safetensors",
)
LINKED += (
    "environment.json",
    "predictions.safetensors",
    "pieces.csv",
    "checkpoint/state.safetensors",
)


@pytest.mark.parametrize("name", LINKED)
def test_a_run_is_not_resumed_through_a_link(tmp_path: Path, outside: Path, name: str) -> None:
    begun = iterate(small(rounds=2), tmp_path / "run")
    next(begun)
    begun.close()
    for planted in (tmp_path / "run" / name, tmp_path / "run" / f"{name}.part"):
        if planted.exists():
            (
                planted.rename(tmp_path / "moved")
                if not planted.is_dir()
                else planted.rename(tmp_path / "folder")
            )
        planted.symlink_to(outside / (".bashrc" if planted.suffix else "Pictures"))
    link = tmp_path / "run" / name
    if (
        name == "metrics.json"
    ):  # a link to something that is no result of ours: it must not stand for one
        link.unlink()
        link.symlink_to(outside / "nothing")
    with pytest.raises(UserError, match="is a link and may lead out of its folder"):
        list(iterate(small(rounds=2), tmp_path / "run", resume=True))
    assert untouched(outside)


def test_a_folder_that_the_user_names_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "big disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "big disk")
    list(iterate(small(rounds=1), tmp_path / "run"))
    assert (tmp_path / "big disk" / "metrics.json").is_file()


def test_a_study_runs_in_no_linked_folder_and_logs_to_no_linked_file(
    tmp_path: Path, outside: Path
) -> None:
    (tmp_path / "s.toml").write_text("rounds = 1\nscenario = 'CHM-1'\nmethod = ['fedavg']\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "CHM-1_fedavg_seed=0").symlink_to(outside / "Pictures")
    done = CliRunner().invoke(
        app, ["study", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 1
    assert untouched(outside)
    (tmp_path / "failures.log").symlink_to(outside / ".bashrc")
    with pytest.raises(UserError, match="is a link"):
        append_to_log(tmp_path / "failures.log", "line\n")
    assert untouched(outside)


@pytest.mark.parametrize("target", [".bashrc", "Pictures", "nothing"])
def test_every_writer_refuses_a_link(tmp_path: Path, outside: Path, target: str) -> None:
    link = tmp_path / "link.png"
    link.symlink_to(outside / target)
    with pytest.raises(UserError, match="is a link"):
        write_whole(link, b"")
    with pytest.raises(UserError, match="is a link"), open_file(link, "wb"):
        pass
    with pytest.raises(UserError, match="is a link"):
        make_subfolder(link)
    assert "is a link" in said("weights", "--rounds", "2", "--sizes", "1,2", "--plot", link)
    assert untouched(outside)
    with pytest.raises(UserError, match="is no regular file"):
        write_whole(Path("/dev/null"), b"")


# -------------------------------------------------------------------------------------------- whole


def test_a_file_left_behind_by_a_dead_process_goes_and_one_in_use_stays(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, pathlib; from feddraw.system import file_writing\n"
        "pathlib.Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "file_writing.write_whole(pathlib.Path(sys.argv[1]), b'half')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "x")], check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".feddraw-")
    busy = tmp_path / ".feddraw-0000.part"
    with open_file(busy, "wb") as file:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_SH)
        write_whole(tmp_path / "y", b"whole")
        assert {path.name for path in tmp_path.iterdir()} == {busy.name, "y"}
    write_whole(tmp_path / "y", b"again")
    assert [path.name for path in tmp_path.iterdir()] == ["y"]


# ------------------------------------------------------------------------------------------ private


@pytest.fixture(params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("umask")
def test_scores_checkpoints_and_memory_are_for_their_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from feddraw.flower.client_memory import ClientMemory

    folder = RunFolder(tmp_path / "runs" / "one")
    list(iterate(small(rounds=1), folder.path))
    assert [mode(path) for path in (folder.predictions, folder.checkpoint)] == [0o600] * 2
    assert [mode(path) for path in (folder.path, folder.checkpoint.parent)] == [0o700] * 2
    shelf = ClientMemory(tmp_path / "memory", "run", "North")
    import numpy as np

    shelf.save(0, {"c": np.zeros(2, np.float32)})
    (kept,) = shelf.path.iterdir()
    assert [mode(path) for path in (kept, shelf.path, shelf.path.parent)] == [0o600, 0o700, 0o700]


@pytest.mark.usefixtures("umask")
def test_prepared_images_are_for_their_owner_only_and_older_ones_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    from feddraw.data.npz_archive import NpzArchive

    parts = {
        f"{part}_{kind}": np.zeros((4, 8, 8) if kind == "images" else (4, 14), np.uint8)
        for part in ("train", "val", "test")
        for kind in ("images", "labels")
    }
    np.savez(tmp_path / "a.npz", **parts)
    monkeypatch.setenv("FEDDRAW_CACHE", str(tmp_path / "cache"))

    def entry() -> Path:
        archive = NpzArchive.open(tmp_path / "a.npz")
        return archive.images().unpack(None).entry

    made = entry()
    assert mode(made) == 0o700
    assert {mode(path) for path in made.iterdir()} == {0o600}
    made.chmod(0o755)
    (made / "images.npy").chmod(0o644)
    entry()
    assert (mode(made), mode(made / "images.npy")) == (0o700, 0o600)


@pytest.mark.usefixtures("umask")
def test_only_new_folders_get_a_mode(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    before = mode(tmp_path / "mine")
    make_folder(tmp_path / "mine", private=True)
    assert mode(tmp_path / "mine") == before


ELSEWHERE = """
import os, sys
import torch  # what it and asyncio need of this system at their import is not ours to do without
sys.modules["fcntl"] = None  # as on Windows
for name in ("O_NOFOLLOW", "sysconf", "sched_getaffinity"):
    delattr(os, name)
from pathlib import Path
import pytest
from feddraw.errors import UserError
from feddraw.experiment.running import run
from feddraw.system import locks
from feddraw.system import file_writing
from small import small

folder = Path(sys.argv[1])
list(run(small(rounds=1), folder / "run"))
assert (folder / "run" / "metrics.json").is_file()
assert not list(folder.rglob("*.lock")) + list(folder.rglob("*.part"))
with locks.lock_folder(folder), pytest.raises(UserError, match=r"another process is using .* delete .*\\.lock"):
    with locks.lock_folder(folder):
        pass
locks.LONGEST_WAIT = 0.1
with locks.lock_file(folder / "plan.json"), pytest.raises(UserError, match=r"another process is writing .*plan\\.json"):
    with locks.lock_file(folder / "plan.json"):
        pass
file_writing.write_whole(folder / "whole", b"old")
file_writing.write_whole(folder / "whole", b"new")
assert (folder / "whole").read_bytes() == b"new"
assert {path.name for path in folder.iterdir()} == {"run", "whole"}
"""


def test_without_fcntl_a_run_is_written_and_locks_are_files(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, tmp_path],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_nothing_imports_fcntl_before_it_is_needed() -> None:
    source = Path(locks.__file__).parent.parent
    early = [
        path
        for path in source.rglob("*.py")
        if re.search(r"^(import|from) fcntl", path.read_text(), re.MULTILINE)
    ]
    assert not early

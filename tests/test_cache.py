"""The cache of prepared images: whole, resumable, shared."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from feddraw.data import image_cache
from feddraw.data.image_cache import CHUNK, FilesToCache, file_stamp, prepare_images
from feddraw.data.imaging import Recipe
from feddraw.errors import RunFailed, UserError

COUNT = 3 * CHUNK + 10


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDDRAW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@dataclass(frozen=True)
class Numbers:
    """Images that show their own number, and take a while."""

    count: int = COUNT
    seconds: float = 0.0
    dies_at: int = -1

    def __len__(self):
        return self.count

    def read(self, row):
        time.sleep(self.seconds)
        if row == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full((16, 16), row % 251, dtype=np.uint8)

    def identity(self):
        yield str(self.count)


def is_right(prepared, count=COUNT):
    return (prepared.images[:, 3, 5] == np.arange(count) % 251).all()


def folder(path: Path, count=5) -> FilesToCache:
    path.mkdir(exist_ok=True)
    for number in range(count):
        Image.fromarray(np.full((20, 20), 40 * number, dtype=np.uint8)).save(path / f"{number}.png")
    names = tuple(f"{number}.png" for number in range(count))
    return FilesToCache(path, names, tuple(file_stamp(path / name) for name in names))


def test_prepared_images_are_memory_mapped_and_read_only():
    prepared = prepare_images(Numbers(), Recipe(16), "numbers")
    assert isinstance(prepared.images, np.memmap)
    assert prepared.images.dtype == np.uint8
    assert not prepared.images.flags.writeable
    assert is_right(prepared)


def test_a_second_preparation_reads_and_does_not_work(monkeypatch):
    prepare_images(Numbers(), Recipe(16), "numbers")
    monkeypatch.setattr(Numbers, "read", lambda *_: pytest.fail("read again"))
    assert is_right(prepare_images(Numbers(), Recipe(16), "numbers"))


def test_other_settings_and_other_content_get_another_entry(tmp_path):
    first = prepare_images(folder(tmp_path / "a"), Recipe(16), "a").entry
    assert prepare_images(folder(tmp_path / "a"), Recipe(8), "a").entry != first
    assert prepare_images(folder(tmp_path / "a"), Recipe(16, clahe=True), "a").entry != first
    Image.fromarray(np.full((20, 21), 9, dtype=np.uint8)).save(tmp_path / "a" / "0.png")
    files = FilesToCache(tmp_path / "a", ("0.png",), (file_stamp(tmp_path / "a" / "0.png"),))
    changed = prepare_images(files, Recipe(16), "a")
    assert changed.entry != first
    assert (changed.images[0] == 9).all()


def test_two_workers_give_what_one_gives():
    alone = prepare_images(Numbers(), Recipe(16), "alone")
    together = prepare_images(Numbers(), Recipe(16), "together", workers=2)
    assert (alone.images == together.images).all()


def test_progress_is_told_up_to_the_end():
    told = []
    prepare_images(Numbers(), Recipe(16), "numbers", progress=lambda *news: told.append(news))
    assert told[0] == ("numbers", 0, COUNT)
    assert told[-1] == ("numbers", COUNT, COUNT)


def test_bad_images_are_black_and_named(tmp_path):
    files = folder(tmp_path / "a")
    (tmp_path / "a" / "2.png").write_text("no image")
    prepared = prepare_images(files, Recipe(16), "a")
    assert prepared.bad == {2: "not a PNG, JPEG or DICOM image"}
    assert (prepared.images[2] == 0).all()
    assert (prepared.images[3] == 120).all()


def test_an_interrupted_preparation_goes_on_where_it_stopped(monkeypatch):
    def stop(what, ready, total):
        if ready >= 2 * CHUNK:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_images(Numbers(), Recipe(16), "numbers", progress=stop)
    read = []
    original = Numbers.read
    monkeypatch.setattr(Numbers, "read", lambda self, row: read.append(row) or original(self, row))
    assert is_right(prepare_images(Numbers(), Recipe(16), "numbers"))
    assert sorted(read) == list(range(2 * CHUNK, COUNT))


def test_a_killed_preparation_goes_on_where_it_stopped(own_cache):
    with start(Numbers(seconds=0.003)) as process:
        wait_for(lambda: any(own_cache.glob("*/progress.jsonl")) and lines(own_cache) >= 1)
        process.send_signal(signal.SIGKILL)
    log = next(own_cache.glob("*/progress.jsonl"))
    with log.open("a") as file:
        file.write(
            '\0\0\0\n{"start": 256, "ba'
        )  # as after a power cut, and as if killed while it wrote
    told = []
    prepared = prepare_images(
        Numbers(seconds=0.003), Recipe(16), "numbers", progress=lambda *news: told.append(news[1])
    )
    assert told[0] >= CHUNK
    assert is_right(prepared)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_of_a_killed_preparation_end_at_once(own_cache):
    with start(Numbers(seconds=0.005), workers=2) as process:
        wait_for(lambda: any(own_cache.glob("*/progress.jsonl")) and lines(own_cache) >= 1)
        children = {
            int(pid)
            for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        }
        assert len(children) >= 2
        process.send_signal(signal.SIGKILL)
    wait_for(lambda: not any(alive(child) for child in children), seconds=1.5)


def test_two_processes_that_want_the_same_entry_share_the_work(own_cache):
    with start(Numbers(seconds=0.002)) as process:
        wait_for(lambda: any(own_cache.glob("*/progress.jsonl")))
        told = []
        prepared = prepare_images(
            Numbers(seconds=0.002),
            Recipe(16),
            "numbers",
            progress=lambda *news: told.append(news[0]),
        )
        assert process.wait(20) == 0
    assert is_right(prepared)
    assert set(told) == {f"waiting for process {process.pid}, which prepares the same images"}


def test_the_lock_of_a_dead_process_is_taken_over(own_cache):
    with start(Numbers(seconds=0.003)) as process:
        wait_for(lambda: any(own_cache.glob("*/progress.jsonl")))
        process.send_signal(signal.SIGKILL)
    assert (next(own_cache.glob("*")) / "lock").read_text() == str(process.pid)
    assert is_right(prepare_images(Numbers(seconds=0), Recipe(16), "numbers"))


def test_a_worker_that_dies_is_told_and_the_rest_is_kept(own_cache):
    with pytest.raises(RunFailed, match=r"was killed \(SIGKILL\).*; finished work is kept"):
        prepare_images(Numbers(dies_at=COUNT - 1), Recipe(16), "numbers", workers=2)
    assert not multiprocessing.active_children()
    assert not list(own_cache.glob("*/images.npy"))
    assert is_right(prepare_images(Numbers(), Recipe(16), "numbers"))


def test_an_entry_cut_short_is_made_again():
    first = prepare_images(Numbers(), Recipe(16), "numbers")
    file = first.entry / "images.npy"
    file.write_bytes(file.read_bytes()[:1000])
    assert is_right(prepare_images(Numbers(), Recipe(16), "numbers"))


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDDRAW_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot write the cache .*FEDDRAW_CACHE"):
        prepare_images(Numbers(), Recipe(16), "numbers")


def test_a_full_disk_is_told_before_the_work_begins(monkeypatch):
    monkeypatch.setattr(image_cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    monkeypatch.setattr(Numbers, "read", lambda *_: pytest.fail("work has begun"))
    with pytest.raises(UserError, match=r"needs 0.1 MB and has 0.0 MB free"):
        prepare_images(Numbers(), Recipe(16), "numbers")


def test_a_script_without_a_main_guard_is_told_so(tmp_path, own_cache):
    script = tmp_path / "script.py"
    script.write_text(
        "from test_cache import Numbers, Recipe, prepare_images\n"
        "prepare_images(Numbers(), Recipe(16), 'numbers', workers=2)\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        check=False,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "if __name__ == '__main__':" in done.stderr


def test_nothing_of_the_making_is_left_in_a_finished_entry(own_cache):
    entry = prepare_images(Numbers(), Recipe(16), "numbers").entry
    assert sorted(file.name for file in entry.iterdir()) == [
        "about.json",
        "bad.json",
        "images.npy",
        "lock",
    ]
    assert json.loads((entry / "about.json").read_text())["size"] == 16


# ---------------------------------------------------------------------------------------- processes


class start:
    """Prepare in another process."""

    def __init__(self, source, workers=1):
        code = (
            "from test_cache import Numbers, Recipe, prepare_images; "
            f"prepare_images({source!r}, Recipe(16), 'numbers', workers={workers})"
        )
        self.process = subprocess.Popen([sys.executable, "-c", code], env=environment())

    def __enter__(self):
        return self.process

    def __exit__(self, *_):
        self.process.wait(30)


def environment():
    paths = [str(Path(__file__).parent), str(Path(image_cache.__file__).parents[2])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def lines(folder: Path) -> int:
    return sum(log.read_text().count("\n") for log in folder.glob("*/progress.jsonl"))


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().split()[2] != "Z"


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.01)


def test_a_folder_is_no_file_and_one_that_may_not_be_looked_into_is_not_called_missing(
    tmp_path, monkeypatch
):
    assert file_stamp(tmp_path) is None
    assert file_stamp(tmp_path / "gone.png") is None

    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(image_cache.os, "stat", refused)
    with pytest.raises(PermissionError):
        file_stamp(tmp_path / "x.png")

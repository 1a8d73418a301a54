"""Checks of a machine: folders that must be writable, shared memory, room and speed of the disk, installed versions."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np

from feddraw.data import image_cache
from feddraw.results.environment import installed_version
from feddraw.system.files import nearest_place
from feddraw.system.shared_memory import Shared

PIXELS, IMAGES, BATCH = 224, 1280, 64  # 64 MB of prepared images, read in batches
PREPARED = (191_027 + 234 + 112_120) * PIXELS**2  # bytes of both archives of the paper, prepared at 224 px
SHARED = 1 << 26  # bytes of shared memory that are tried
DISK_SECONDS = 5.0  # for writing and reading


def check_machine() -> list[Check]:
    looks: dict[str, Callable[[], Check]] = {
        "results folder": lambda: writable("results folder", Path.cwd()),
        "cache folder": lambda: writable("cache folder", image_cache.cache_folder()),
        "temporary folder": lambda: writable("temporary folder", Path(tempfile.gettempdir())),
        "shared memory": shared_memory,
        "cache's disk": lambda: disk(image_cache.cache_folder(), DISK_SECONDS),
    }
    return [attempted(what, look) for what, look in looks.items()]


def writable(what: str, folder: Path) -> Check:
    """Whether files can be made in a folder, or in the nearest that is there."""
    there = nearest_place(folder)
    hint = "; FEDDRAW_CACHE names another" if what == "cache folder" else ""
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".feddraw-"):
            pass
    except OSError as error:
        return Check(what, "broken", f"{there}: {error.strerror}{hint}")
    free = shutil.disk_usage(there).free
    numbers = {"folder": str(folder), "free_bytes": free}
    return Check(what, "ok" if free > 1e9 else "note", f"{folder}, {free / 1e9:,.1f} GB free", numbers)


def shared_memory() -> Check:
    """What workers exchange models through."""
    with closing(Shared()) as shared:
        array, _ = shared.empty((SHARED,), np.uint8)
        array[:] = 1  # a full file system kills the process, or refuses, only now
        del array
    place = Path("/dev/shm")
    free = shutil.disk_usage(place).free if place.is_dir() else 0
    if 0 < free < 1e9:
        said = f"{free / 1e9:.1f} GB free in {place}: many clients of a large network need engine = serial"
        return Check("shared memory", "note", said, {"free_bytes": free})
    return Check("shared memory", "ok", f"{free / 1e9:,.1f} GB free" if free else "works", {"free_bytes": free})


def disk(root: Path, seconds: float) -> Check:
    """Megabytes a second that prepared images are written and read with, batch by batch in random order."""
    folder = nearest_place(root)
    free = shutil.disk_usage(folder).free
    if free < 10 * IMAGES * PIXELS**2:
        return Check("cache's disk", "note", f"too full to be measured: {free / 1e9:.1f} GB free")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".feddraw-doctor-") as place:
        file = Path(place) / "images.npy"
        block = np.random.default_rng(0).integers(0, 256, (BATCH, PIXELS, PIXELS), dtype=np.uint8)
        written, images = _write(file, block, seconds / 2)
        read = _read(file, images, seconds / 2)
    numbers = {"write_mb_s": round(written), "read_mb_s": round(read), "free_bytes": free}
    needed = f"; the paper's images need {PREPARED / 1e9:.0f} GB" if free < PREPARED else ""
    rate = f"{1e6 * read / PIXELS**2:,.0f} images of {PIXELS} px a second"
    said = f"writes {written:,.0f} MB/s, reads {read:,.0f} MB/s, {rate}{needed}"
    return Check("cache's disk", "note" if needed else "ok", said, numbers)


def _write(file: Path, block: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], seconds: float) -> tuple[float, int]:
    """Megabytes a second, and how many images were written."""
    began, count, header = time.perf_counter(), 0, image_cache.image_array_header((IMAGES, PIXELS, PIXELS))
    with file.open("wb") as out:
        out.write(header)
        while count < IMAGES // BATCH:
            out.write(block.tobytes())
            count += 1
            if time.perf_counter() - began > seconds:
                break
        out.flush()
        os.fsync(out.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that reading asks the disk
        written = count * block.nbytes / 1e6 / (time.perf_counter() - began)
        out.truncate(len(header) + IMAGES * PIXELS**2)
    return written, count * BATCH


def _read(file: Path, written: int, seconds: float) -> float:
    images = np.load(file, mmap_mode="r", allow_pickle=False)
    order = np.random.default_rng(1).permutation(written)
    began, count = time.perf_counter(), 0
    for start in range(0, len(order), BATCH):
        count += int(images[order[start : start + BATCH]].nbytes)
        if time.perf_counter() - began > seconds:
            break
    return count / 1e6 / (time.perf_counter() - began)


State = Literal["ok", "note", "broken"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: fine, worth knowing, or broken."""

    what: str
    state: State
    said: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


def attempted(what: str, look: Callable[[], Check]) -> Check:
    """A check whatever happens: what it raises is what is broken."""
    try:
        return look()
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        return Check(what, "broken", f"{type(error).__name__}: {reason}" if reason else type(error).__name__)


def within(error: float, tolerance: float) -> State:
    """Broken where an error is too large, or no number."""
    return "ok" if error < tolerance else "broken"


# As in constraints.txt, which an installed package does not have beside it.
TESTED = {
    "numpy": "2.4.6",
    "scipy": "1.17.1",
    "torch": "2.13.0",
    "safetensors": "0.8.0",
    "scikit-image": "0.26.0",
    "pillow": "13.0.0",
    "matplotlib": "3.11.2",
    "typer": "0.20.1",
    "click": "8.4.2",
    "rich": "14.3.4",
    "pooch": "1.9.0",
    "tomli_w": "1.2.0",
    "monai": "1.5.1",
    "flwr": "1.41.0",
}
OPTIONAL = {"monai": "densenet", "flwr": "flower"}  # and the extra that brings it
PYTHONS = ((3, 11), (3, 12))


def check_versions() -> list[Check]:
    """Python, and all packages in one line, or a line for each that differs."""
    here = platform.python_version()
    known = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    same = sys.version_info[:2] in PYTHONS
    found = [Check("Python", "ok" if same else "note", here if same else f"{here}, tested with {known}")]
    compared = [compare(name, tested, installed_version(name)) for name, tested in TESTED.items()]
    others = [check for check in compared if check is not None]
    if others:
        return found + others
    return [*found, Check("packages", "ok", f"the versions that were tested: torch {TESTED['torch']} and the others")]


def compare(name: str, tested: str, here: str) -> Check | None:
    """Nothing to say of a version that differs in its last number only."""
    if not here:
        extra = OPTIONAL.get(name)
        told = f"not installed: pip install 'feddraw[{extra}]'" if extra else "not installed"
        return Check(name, "note" if extra else "broken", told)
    if (least := required(name)) and _numbers(here) < _numbers(least):
        return Check(name, "broken", f"{here}: feddraw needs {least} or later")
    if _numbers(here)[:2] != _numbers(tested)[:2]:
        return Check(name, "note", f"{here}, tested with {tested}")
    return None


def required(name: str) -> str:
    """The least version that feddraw asks for; empty if it asks for none."""
    try:
        wanted = metadata.requires("feddraw") or []
    except metadata.PackageNotFoundError:
        return ""
    for line in wanted:
        asked = re.match(r"([\w.-]+)[^;]*?>=\s*([\w.]+)", line)
        if asked and _plain(asked[1]) == _plain(name):
            return asked[2]
    return ""


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))

"""Checks of a machine: folders that must be writable, shared memory, room and speed of the disk,
installed versions.
"""

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
from numpy.typing import NDArray

from feddraw.data import image_cache
from feddraw.results.environment import installed_version
from feddraw.system.file_writing import nearest_existing
from feddraw.system.shared_memory import SharedArrays

# 64 MB of prepared images, read in batches.
DISK_PIXELS = 224
DISK_IMAGES = 1280
DISK_BATCH = 64
# Of both archives of the paper, at 224 px.
PAPER_PREPARED_BYTES = (191_027 + 234 + 112_120) * DISK_PIXELS**2
SHARED_BYTES = 1 << 26  # bytes of shared memory that are tried
DISK_SECONDS = 5.0  # for writing and reading


CheckState = Literal["ok", "note", "broken"]


@dataclass(frozen=True)
class MachineCheck:
    """One thing that was looked at: fine, worth knowing, or broken."""

    what: str
    state: CheckState
    said: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


def check_or_broken(what: str, look: Callable[[], MachineCheck]) -> MachineCheck:
    """A check whatever happens: what it raises is what is broken."""
    try:
        return look()
    except Exception as error:
        name = type(error).__name__
        reason = next(iter(str(error).splitlines()), "")
        return MachineCheck(what, "broken", f"{name}: {reason}" if reason else name)


def state_within(error: float, tolerance: float) -> CheckState:
    """Broken where an error is too large, or no number."""
    return "ok" if error < tolerance else "broken"


def check_machine() -> list[MachineCheck]:
    looks: dict[str, Callable[[], MachineCheck]] = {
        "results folder": lambda: check_writable("results folder", Path.cwd()),
        "cache folder": lambda: check_writable("cache folder", image_cache.cache_folder()),
        "temporary folder": lambda: check_writable("temporary folder", Path(tempfile.gettempdir())),
        "shared memory": check_shared_memory,
        "cache's disk": lambda: check_disk_speed(image_cache.cache_folder(), DISK_SECONDS),
    }
    return [check_or_broken(what, look) for what, look in looks.items()]


def check_writable(what: str, folder: Path) -> MachineCheck:
    """Whether files can be made in a folder, or in the nearest that is there."""
    there = nearest_existing(folder)
    hint = "; FEDDRAW_CACHE names another" if what == "cache folder" else ""
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".feddraw-"):
            pass
    except OSError as error:
        return MachineCheck(what, "broken", f"{there}: {error.strerror}{hint}")
    free = shutil.disk_usage(there).free
    return MachineCheck(
        what,
        "ok" if free > 1e9 else "note",
        f"{folder}, {free / 1e9:,.1f} GB free",
        {"folder": str(folder), "free_bytes": free},
    )


def check_shared_memory() -> MachineCheck:
    """What workers exchange models through."""
    with closing(SharedArrays()) as shared:
        array, _ = shared.empty((SHARED_BYTES,), np.uint8)
        array[:] = 1  # a full file system kills the process, or refuses, only now
        del array
    folder = Path("/dev/shm")
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    numbers = {"free_bytes": free}
    if not free:
        return MachineCheck("shared memory", "ok", "works", numbers)
    if free < 1e9:
        little = f"{free / 1e9:.1f} GB free in {folder}"
        advice = "many clients of a large network need engine = serial"
        return MachineCheck("shared memory", "note", f"{little}: {advice}", numbers)
    return MachineCheck("shared memory", "ok", f"{free / 1e9:,.1f} GB free", numbers)


def check_disk_speed(root: Path, seconds: float) -> MachineCheck:
    """Megabytes a second that prepared images are written and read with, batch by batch in random
    order.
    """
    folder = nearest_existing(root)
    free = shutil.disk_usage(folder).free
    if free < 10 * DISK_IMAGES * DISK_PIXELS**2:
        return MachineCheck(
            "cache's disk", "note", f"too full to be measured: {free / 1e9:.1f} GB free"
        )
    with tempfile.TemporaryDirectory(dir=folder, prefix=".feddraw-doctor-") as place:
        file = Path(place) / "images.npy"
        block = np.random.default_rng(0).integers(
            0, 256, (DISK_BATCH, DISK_PIXELS, DISK_PIXELS), dtype=np.uint8
        )
        written, images = _write_speed(file, block, seconds / 2)
        read = _read_speed(file, images, seconds / 2)
    images_per_second = 1e6 * read / DISK_PIXELS**2
    speed = (
        f"writes {written:,.0f} MB/s, reads {read:,.0f} MB/s, {images_per_second:,.0f} images of"
        f" {DISK_PIXELS} px a second"
    )
    numbers = {"write_mb_s": round(written), "read_mb_s": round(read), "free_bytes": free}
    if free < PAPER_PREPARED_BYTES:
        needed = f"the paper's images need {PAPER_PREPARED_BYTES / 1e9:.0f} GB"
        return MachineCheck("cache's disk", "note", f"{speed}; {needed}", numbers)
    return MachineCheck("cache's disk", "ok", speed, numbers)


def _write_speed(file: Path, block: NDArray[np.uint8], seconds: float) -> tuple[float, int]:
    """Megabytes a second, and how many images were written."""
    began = time.perf_counter()
    count = 0
    header = image_cache.image_array_header((DISK_IMAGES, DISK_PIXELS, DISK_PIXELS))
    with file.open("wb") as out:
        out.write(header)
        while count < DISK_IMAGES // DISK_BATCH:
            out.write(block.tobytes())
            count += 1
            if time.perf_counter() - began > seconds:
                break
        out.flush()
        os.fsync(out.fileno())
        if hasattr(os, "posix_fadvise"):  # so that reading asks the disk
            os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        written = count * block.nbytes / 1e6 / (time.perf_counter() - began)
        out.truncate(len(header) + DISK_IMAGES * DISK_PIXELS**2)
    return written, count * DISK_BATCH


def _read_speed(file: Path, written: int, seconds: float) -> float:
    """Megabytes a second."""
    images = np.load(file, mmap_mode="r", allow_pickle=False)
    order = np.random.default_rng(1).permutation(written)
    began = time.perf_counter()
    read = 0
    for start in range(0, len(order), DISK_BATCH):
        read += int(images[order[start : start + DISK_BATCH]].nbytes)
        if time.perf_counter() - began > seconds:
            break
    return read / 1e6 / (time.perf_counter() - began)


# As in constraints.txt, which an installed package does not have beside it.
TESTED_VERSIONS = {
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
OPTIONAL_PACKAGES = {"monai": "densenet", "flwr": "flower"}  # and the extra that brings it
TESTED_PYTHONS = ((3, 11), (3, 12))


def check_versions() -> list[MachineCheck]:
    """Python, and all packages in one line, or a line for each that differs."""
    compared = [
        check_version(name, tested, installed_version(name))
        for name, tested in TESTED_VERSIONS.items()
    ]
    others = [check for check in compared if check is not None]
    if others:
        return [_check_python(), *others]
    as_tested = f"the versions that were tested: torch {TESTED_VERSIONS['torch']} and the others"
    return [_check_python(), MachineCheck("packages", "ok", as_tested)]


def _check_python() -> MachineCheck:
    here = platform.python_version()
    if sys.version_info[:2] in TESTED_PYTHONS:
        return MachineCheck("Python", "ok", here)
    tested = ", ".join(f"{major}.{minor}" for major, minor in TESTED_PYTHONS)
    return MachineCheck("Python", "note", f"{here}, tested with {tested}")


def check_version(name: str, tested: str, here: str) -> MachineCheck | None:
    """Nothing to say of a version that differs in its last number only."""
    if not here:
        if name not in OPTIONAL_PACKAGES:
            return MachineCheck(name, "broken", "not installed")
        advice = f"not installed: pip install 'feddraw[{OPTIONAL_PACKAGES[name]}]'"
        return MachineCheck(name, "note", advice)
    least = least_version(name)
    if least and _version_numbers(here) < _version_numbers(least):
        return MachineCheck(name, "broken", f"{here}: feddraw needs {least} or later")
    if _version_numbers(here)[:2] != _version_numbers(tested)[:2]:
        return MachineCheck(name, "note", f"{here}, tested with {tested}")
    return None


def least_version(name: str) -> str:
    """The least version that feddraw asks for; empty if it asks for none."""
    try:
        requirements = metadata.requires("feddraw") or []
    except metadata.PackageNotFoundError:
        return ""
    for requirement in requirements:
        parts = re.match(r"([\w.-]+)[^;]*?>=\s*([\w.]+)", requirement)
        if parts and _plain_name(parts[1]) == _plain_name(name):
            return parts[2]
    return ""


def _plain_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))

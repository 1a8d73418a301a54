"""Prepared images on disk: decoded, resized and equalised once, memory-mapped by every run and
worker.

An entry is a folder of `$FEDDRAW_CACHE`, or of the platform's cache folder, named by a hash of the
settings and of what identifies the sources, wherever they lie: for image files each one's name
below their folder, size and time of change; for arrays in an archive their checksums. While it is
made, chunks of rows are written in place and logged in `progress.jsonl`, so that a killed
preparation continues where it stopped; the finished array gets its name by a rename.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import stat
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feddraw.data.imaging import (
    BadImage,
    Levels,
    Pixels,
    Recipe,
    decode,
    has_levels_of_its_own,
    header_of,
)
from feddraw.errors import UserError
from feddraw.system.file_reading import expanded_path
from feddraw.system.file_writing import (
    close_to_others,
    make_subfolder,
    nearest_existing,
    open_file,
    write_whole,
)
from feddraw.system.locks import flock
from feddraw.system.progress import Progress, no_progress
from feddraw.system.workers import in_workers
from feddraw.text import bytes_in_words

CACHE_FORMAT = 1  # raise it when the same settings give other pixels
CHUNK = 128  # images prepared, written and logged together
JPEG_SUFFIXES = (".jpg", ".jpeg")


class ImageSource(Protocol):
    """Images that can be read one by one, in any process."""

    def __len__(self) -> int: ...

    def read(self, row: int) -> Pixels: ...

    def identity(self) -> Iterable[str]: ...


@dataclass(frozen=True)
class FilesToCache:
    """Image files under a folder, decoded with so many channels."""

    root: Path
    paths: tuple[str, ...]  # relative to the root
    stamps: tuple[tuple[int, int], ...]  # size and time of change
    channels: int = 1
    levels: Levels = ()
    eight_bits: bool = False  # whether all are known to be PNG or JPEG of 8 bits

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, row: int) -> Pixels:
        return decode(self.root / self.paths[row], self.channels, self.levels)

    def identity(self) -> Iterable[str]:
        for path, stamp in zip(self.paths, self.stamps, strict=True):
            yield f"{path}\n{stamp}"
            if not self.eight_bits and self._has_levels_of_its_own(path):
                yield "grey levels by the range that the file states"

    def _has_levels_of_its_own(self, path: str) -> bool:
        if path.lower().endswith(JPEG_SUFFIXES):
            return False  # the only ones of which 8 bits are known without opening them
        try:
            return has_levels_of_its_own(header_of(self.root / path))
        except OSError:  # its row will say why it cannot be read
            return False


def file_stamp(path: Path) -> tuple[int, int] | None:
    """A file's size and time of change; nothing if it is not there, or is a folder."""
    try:
        status = os.stat(path)  # noqa: PTH116 - half the time of Path.stat on the 200,000 files of an archive
    except PermissionError:
        raise  # it may well be there
    except OSError:
        return None
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


@dataclass(frozen=True)
class CachedImages:
    """Images of another cache entry, to be resized or equalised."""

    entry: Path

    def __len__(self) -> int:
        return len(mapped_images(self.entry / "images.npy"))

    def read(self, row: int) -> Pixels:
        return np.asarray(mapped_images(self.entry / "images.npy")[row])

    def identity(self) -> Iterable[str]:
        yield self.entry.name.rpartition("-")[2]  # the hash of its content


@dataclass(frozen=True)
class PreparedImages:
    """A finished entry."""

    images: NDArray[np.uint8]  # (n, *Recipe.shape), memory-mapped; black where the source is bad
    bad: dict[int, str]  # rows that could not be read, and why
    entry: Path


@lru_cache(maxsize=4)
def mapped_images(path: Path) -> NDArray[np.uint8]:
    """Opened once a process, however many rows are read."""
    images: NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
    return images


def cache_folder() -> Path:
    if chosen := os.environ.get("FEDDRAW_CACHE"):
        return expanded_path(chosen)
    import pooch

    return Path(pooch.os_cache("feddraw"))


def cache_entry(name: str, identity: Iterable[str], settings: dict[str, Any]) -> Path:
    """The folder that this content with these settings has in the cache, also if it was prepared
    under another name.
    """
    digest = hashlib.sha256(json.dumps([CACHE_FORMAT, settings], sort_keys=True).encode())
    for line in identity:
        digest.update(line.encode(errors="surrogateescape") + b"\0")
    key = digest.hexdigest()[:16]
    return min(cache_folder().glob(f"*-{key}"), default=cache_folder() / f"{name}-{key}")


def prepare_images(
    source: ImageSource,
    recipe: Recipe,
    name: str,
    workers: int = 1,
    progress: Progress | None = None,
) -> PreparedImages:
    """The prepared images, from the cache or made now; bad files are listed, not raised."""
    entry = cache_entry(name, source.identity(), recipe.key())
    shape = (len(source), *recipe.shape)
    say = progress or no_progress

    def make(partial: Path) -> None:
        job = CacheChunkJob(source, recipe, partial, allocate_image_array(partial, shape))
        log = entry / "progress.jsonl"
        done = read_cache_log(log)
        chunks = [start for start in range(0, len(source), CHUNK) if start not in done]
        ready = len(source) - sum(min(CHUNK, len(source) - start) for start in chunks)
        say(name, ready, len(source))
        with (
            open_file(log, "a", private=True) as file,
            closing(job.chunks(chunks, workers)) as finished,
        ):
            for start, bad in finished:
                file.write(json.dumps({"start": start, "bad": bad}) + "\n")
                file.flush()
                done[start] = bad
                ready += min(CHUNK, len(source) - start)
                say(name, ready, len(source))
        bad_rows: dict[int, str] = {}
        for start in sorted(done):
            bad_rows |= done[start]
        write_entry_json(entry / "bad.json", bad_rows)

    description = {"name": name, "format": CACHE_FORMAT, **recipe.key()}
    return open_or_make_entry(entry, shape, description, make, say)


def open_or_make_entry(
    entry: Path,
    shape: tuple[int, ...],
    description: dict[str, Any],
    make: Callable[[Path], None],
    say: Progress,
) -> PreparedImages:
    """Open the entry if it is finished, else make it, while other processes that want it wait.

    `make` writes the array into the file that it is given; `description` is kept beside it.
    """
    finished = open_finished_entry(entry, shape)
    if finished is not None:
        return finished
    try:
        make_subfolder(entry, private=True)
        with locked_entry(entry, say):
            finished = open_finished_entry(entry, shape)
            if finished is not None:  # made by whoever had the lock
                return finished
            require_cache_space(entry, int(np.prod(shape)))
            write_entry_json(entry / "about.json", {**description, "shape": shape})
            partial = entry / "images.partial.npy"
            make(partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(entry / "images.npy")  # from here on the entry is never written again
            (entry / "progress.jsonl").unlink(missing_ok=True)
    except OSError as error:
        why = f"{error.strerror or error}; FEDDRAW_CACHE names another folder"
        raise UserError(f"cannot write the cache {entry}: {why}") from error
    finished = open_finished_entry(entry, shape)
    assert finished is not None
    return finished


def open_finished_entry(entry: Path, shape: tuple[int, ...]) -> PreparedImages | None:
    """The entry if it is finished and whole."""
    try:
        images: NDArray[np.uint8] = np.load(entry / "images.npy", mmap_mode="r", allow_pickle=False)
        bad: dict[int, str] = {}
        if (entry / "bad.json").exists():
            listed = json.loads((entry / "bad.json").read_text())
            bad = {int(row): str(why) for row, why in listed.items()}
    # Not there, or spoilt in whatever way numpy and json do not foresee: it is made again.
    except Exception:
        return None
    if images.shape != shape or images.dtype != np.uint8:
        return None
    close_to_others(entry, entry / "images.npy", entry / "bad.json", entry / "about.json")
    return PreparedImages(images, bad, entry)


@dataclass(frozen=True)
class CacheChunkJob:
    """All that a worker needs to prepare chunks."""

    source: ImageSource
    recipe: Recipe
    target: Path
    offset: int  # of the first pixel in the target

    def chunks(
        self, starts: list[int], workers: int
    ) -> Generator[tuple[int, dict[int, str]], None, None]:
        """Each chunk's start and bad rows, as they get ready.

        A worker process may not start others: it works alone.
        """
        if workers > 1 and len(starts) > 1 and not multiprocessing.current_process().daemon:
            yield from in_workers(
                self,
                starts,
                min(workers, len(starts)),
                doing="prepared images",
                then="finished work is kept: start again to continue",
            )
        else:
            yield from ((start, self(start)) for start in starts)

    def __call__(self, start: int) -> dict[int, str]:
        """Prepare a chunk and write it where it belongs; gives the bad rows."""
        stop = min(start + CHUNK, len(self.source))
        block = np.zeros((stop - start, *self.recipe.shape), dtype=np.uint8)
        bad = {}
        for row in range(start, stop):
            try:
                block[row - start] = self.recipe.apply(self.source.read(row))
            except BadImage as error:
                bad[row] = str(error)
        # written, not mapped: a full disk is then an error and not a dead process
        with open_file(self.target, "r+b", private=True) as file:
            file.seek(self.offset + start * block[0].nbytes)
            file.write(block.tobytes())
            file.flush()
            os.fsync(file.fileno())
        return bad


def read_cache_log(log: Path) -> dict[int, dict[int, str]]:
    """Chunks that are done, with their bad rows; the last line may be half-written, and is then cut
    off.
    """
    if not log.exists():
        return {}
    *lines, rest = log.read_bytes().split(b"\n")
    if rest:
        os.truncate(log, sum(len(line) + 1 for line in lines))
    done = {}
    for line in lines:
        # spoilt by a power cut: that chunk is prepared again
        with suppress(
            ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
        ):
            entry = json.loads(line)
            done[int(entry["start"])] = {int(row): str(why) for row, why in entry["bad"].items()}
    return done


def allocate_image_array(path: Path, shape: tuple[int, ...]) -> int:
    """Make the array file unless an earlier preparation left it; gives where its pixels begin."""
    header = image_array_header(shape)
    total = len(header) + int(np.prod(shape))
    if not path.exists() or path.stat().st_size != total:
        path.with_name("progress.jsonl").unlink(missing_ok=True)
        with open_file(path, "wb", private=True) as file:
            file.write(header)
            file.truncate(total)
    return len(header)


def image_array_header(shape: tuple[int, ...]) -> bytes:
    """The beginning of an .npy file of bytes."""
    file = BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


@contextmanager
def locked_entry(entry: Path, say: Progress) -> Iterator[None]:
    """Hold the entry, where the system has locks.

    The kernel releases a lock when its holder ends, however it ends.
    """
    with open_file(entry / "lock", "a+", private=True) as file:
        while True:
            with suppress(BlockingIOError):
                flock(file.fileno())
                break
            file.seek(0)
            holder = file.read().strip()
            if holder == str(os.getppid()):
                raise UserError(
                    "a script that prepares data must do so under `if __name__ == '__main__':`"
                )
            say(f"waiting for process {holder}, which prepares the same images", 0, 1)
            time.sleep(0.2)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def require_cache_space(entry: Path, needed: int) -> None:
    """Refuse what the disk has no room for; the entry need not be there yet."""
    there = sum(_bytes_on_disk(file) for file in entry.glob("images.partial.npy"))
    free = shutil.disk_usage(nearest_existing(entry)).free + there
    if needed > free:
        sizes = f"needs {bytes_in_words(needed)} and has {bytes_in_words(free)} free"
        raise UserError(
            f"the cache {entry.parent} {sizes}; make room, or set FEDDRAW_CACHE to another folder"
        )


def _bytes_on_disk(file: Path) -> int:
    """Bytes that a file with holes takes; without the system's word, all."""
    status = file.stat()
    return status.st_blocks * 512 if hasattr(status, "st_blocks") else status.st_size


def write_entry_json(path: Path, content: object) -> None:
    write_whole(path, json.dumps(content, indent=1).encode(), private=True)

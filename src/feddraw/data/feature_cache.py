"""Features of images on disk: what comes out of the frozen part of a network, computed once for
each image and memory-mapped by every run and worker.

An entry is a folder of the cache of images, named by a SHA-256 of the frozen tensors, of where the
network is cut, of how images are prepared, and of the images. Rows are filled in as runs need them:
`features.bin` has a place for every image, and takes room on disk for those that are there;
`checksums.bin` has a number for every row that is. A row is written before its checksum, so what
was cut off is computed again. Once all rows that were asked for are written, `about.json` notes
size and time of both files; where these differ later, every checksum is compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.data.image_cache import (
    cache_entry,
    cache_folder,
    locked_entry,
    require_cache_space,
    write_entry_json,
)
from feddraw.errors import UserError
from feddraw.system.file_writing import close_to_others, make_subfolder, open_file
from feddraw.system.progress import Progress, no_progress
from feddraw.text import folder_name

FEATURE_FORMAT = 1  # raise it when the same settings give other features
HASHED_TOGETHER = 1 << 24  # bytes of images
VERIFIED_TOGETHER = 1024  # rows
# Of the largest value: by how much features of the image of noise may differ between machines.
SAME_NETWORK = 1e-2

Rows = NDArray[np.intp]
Blocks = Iterator[tuple[Rows, NDArray[Any]]]  # some rows, and their features
Features = NDArray[np.floating[Any]]


def images_identity(images: NDArray[np.uint8]) -> str:
    """What tells these images from others: the key of their cache entry, which is never written
    again, or a hash of every pixel.
    """
    file = getattr(images, "filename", None)
    if file is not None and Path(file).parent.parent == cache_folder():
        return f"{Path(file).parent.name.rpartition('-')[2]} {images.shape}"
    digest = hashlib.sha256(str(images.shape).encode())
    together = max(1, HASHED_TOGETHER // max(1, images[:1].nbytes))
    for start in range(0, len(images), together):
        digest.update(np.ascontiguousarray(images[start : start + together]).data)
    return digest.hexdigest()


def tensors_digest(tensors: Mapping[str, NDArray[Any]]) -> str:
    """A SHA-256 of tensors: each name with its type, shape and bytes.

    A single number has the shape (1,), as files and messages have it.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        head = json.dumps([name, array.dtype.str, list(array.shape)]).encode()
        digest.update(len(head).to_bytes(8, "little") + head)
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class FeatureSettings:
    """All that decides what an image's features are."""

    tensors: str  # SHA-256 of the frozen tensors
    cut: str  # the layer that gets the features
    images: str  # see `images_identity`
    mean: float  # of pixel / 255, subtracted from images
    std: float
    shape: tuple[int, ...]  # of one image's features
    type: str  # float32 or float16


@dataclass(frozen=True, eq=False)
class FeatureEntry:
    """An entry of the cache."""

    folder: Path
    settings: FeatureSettings
    rows: int  # images, with their augmented copies
    # Features of an image of noise: another version of the network's code gives others.
    of_noise: NDArray[np.float32]

    @staticmethod
    def of(
        dataset: str, settings: FeatureSettings, rows: int, of_noise: NDArray[np.float32]
    ) -> FeatureEntry:
        """The entry of a data set's features, which need not be there yet."""
        identity = {"format": FEATURE_FORMAT, **vars(settings)}
        folder = cache_entry(f"{folder_name(dataset)}-features", [], identity)
        return FeatureEntry(folder, settings, rows, of_noise)

    @property
    def features_file(self) -> Path:
        return self.folder / "features.bin"

    @property
    def checksums_file(self) -> Path:
        return self.folder / "checksums.bin"

    @property
    def description_file(self) -> Path:
        return self.folder / "about.json"

    @cached_property
    def row_bytes(self) -> int:
        return int(np.prod(self.settings.shape)) * np.dtype(self.settings.type).itemsize

    def mapped(self) -> Features:
        """Every row, those that are not there as zeros."""
        shape = (self.rows, *self.settings.shape)
        return np.memmap(self.features_file, np.dtype(self.settings.type), "r", shape=shape)

    def missing(self, needed: Rows) -> Rows:
        """Those of the needed rows that are not there."""
        return np.asarray(needed[self._checksums()[needed] == 0])

    def _checksums(self) -> NDArray[np.uint32]:
        checksums = np.zeros(self.rows, np.uint32)
        if self.checksums_file.is_file():
            there = np.fromfile(self.checksums_file, np.uint32)[: self.rows]
            checksums[: len(there)] = there
        return checksums

    def _description(self) -> dict[str, Any]:
        try:
            description = json.loads(self.description_file.read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return description if isinstance(description, dict) else {}

    def is_trusted(self) -> bool:
        """Whether the files are as they were when the last rows had been written, by this
        network.
        """
        description = self._description()
        return (
            bool(description)
            and description.get("files") == self._stamps()
            and self._same_network(description)
        )

    def _same_network(self, description: Mapping[str, Any]) -> bool:
        try:
            before = np.array(description["of_noise"], np.float32)
        except (KeyError, TypeError, ValueError):
            return False
        if before.shape != self.of_noise.shape:
            return False
        largest = SAME_NETWORK * float(np.abs(self.of_noise).max(initial=0.0))
        return bool((np.abs(before - self.of_noise) <= largest).all())

    def _stamps(self) -> list[list[int]] | None:
        try:
            states = [file.stat() for file in (self.features_file, self.checksums_file)]
        except OSError:
            return None
        return [[state.st_size, state.st_mtime_ns] for state in states]

    def make_room(self) -> None:
        """Files with a place for every row, before rows are written; what is damaged or of other
        code is dropped.
        """
        description = self._description()
        if description and not self._same_network(description):
            warnings.warn(
                f"{self.folder} holds features of another version of this network's code: they are"
                " computed again",
                stacklevel=2,
            )
            self.checksums_file.unlink(missing_ok=True)
        elif not self.is_trusted():
            self._drop_damaged()
        for file, width in ((self.features_file, self.row_bytes), (self.checksums_file, 4)):
            with open_file(file, "ab", private=True) as opened:
                if opened.tell() < width * self.rows:
                    opened.truncate(width * self.rows)
        self._write_description([])  # until all rows are written

    def _drop_damaged(self) -> None:
        """Compare every row with its checksum."""
        checksums = self._checksums()
        there = np.flatnonzero(checksums)
        if not len(there):
            return
        damaged = []
        with open_file(self.features_file, "a+b", private=True) as file:
            for row in there.tolist():
                file.seek(row * self.row_bytes)
                content = file.read(self.row_bytes)
                if len(content) < self.row_bytes or _checksum(content) != checksums[row]:
                    damaged.append(row)
        if damaged:
            warnings.warn(
                f"{self.folder} has {len(damaged):,} damaged rows of features: they are computed"
                " again",
                stacklevel=2,
            )
            checksums[damaged] = 0
            with open_file(self.checksums_file, "wb", private=True) as file:
                file.write(checksums.tobytes())

    def write(self, rows: Rows, features: NDArray[Any]) -> None:
        """Put rows in their places, then their checksums."""
        kept = np.ascontiguousarray(features, self.settings.type)
        lines = [row.tobytes() for row in kept]
        # written, not mapped: a full disk is then an error and not a dead process
        with open_file(self.features_file, "r+b", private=True) as file:
            for row, line in zip(rows.tolist(), lines, strict=True):
                file.seek(row * self.row_bytes)
                file.write(line)
            file.flush()
        with open_file(self.checksums_file, "r+b", private=True) as file:
            for row, line in zip(rows.tolist(), lines, strict=True):
                file.seek(row * 4)
                file.write(np.uint32(_checksum(line)).tobytes())

    def finish(self) -> None:
        """Note that all that was asked for is there."""
        for file in (self.features_file, self.checksums_file):
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
        close_to_others(self.folder, self.features_file, self.checksums_file)
        self._write_description(self._stamps() or [])

    def _write_description(self, stamps: list[list[int]]) -> None:
        description = {"format": FEATURE_FORMAT, **vars(self.settings), "rows": self.rows}
        write_entry_json(
            self.description_file,
            {**description, "files": stamps, "of_noise": self.of_noise.tolist()},
        )


def _checksum(line: bytes) -> int:
    """Of a row's bytes; never zero, which means that it is not there."""
    return zlib.crc32(line) or 1


def open_features(
    entry: FeatureEntry,
    needed: Rows,
    compute: Callable[[Rows], Blocks],
    progress: Progress | None = None,
) -> Features:
    """Features with the needed rows filled in: from the cache, or computed now while other
    processes that want them wait.

    `compute` gives the features of rows, block by block, in any order.
    """
    if entry.is_trusted() and not len(entry.missing(needed)):
        return entry.mapped()
    say = progress or no_progress
    if not entry.folder.exists():  # nobody computes them, so that no folder need be left behind
        require_cache_space(entry.folder, len(needed) * entry.row_bytes)
    try:
        make_subfolder(entry.folder, private=True)
        with locked_entry(entry.folder, say):
            if not entry.is_trusted() or len(entry.missing(needed)):
                _fill_in(entry, needed, compute, say)
    except OSError as error:
        why = f"{error.strerror or error}; FEDDRAW_CACHE names another folder"
        raise UserError(f"cannot write the cache {entry.folder}: {why}") from error
    return entry.mapped()


def _fill_in(
    entry: FeatureEntry, needed: Rows, compute: Callable[[Rows], Blocks], say: Progress
) -> None:
    # before anything is written; rows that turn out to be damaged have their place already
    require_cache_space(entry.folder, len(entry.missing(needed)) * entry.row_bytes)
    entry.make_room()
    missing = entry.missing(needed)
    ready = len(needed) - len(missing)
    say("features", ready, len(needed))
    for rows, features in compute(missing) if len(missing) else ():
        entry.write(rows, features)
        ready += len(rows)
        say("features", ready, len(needed))
    entry.finish()


# ----------------------------------------------------------------------------------------- cleaning


ENTRY_FILES = (
    "about.json",
    "bad.json",
    "checksums.bin",
    "features.bin",
    "images.npy",
    "images.partial.npy",
    "lock",
    "progress.jsonl",
)


@dataclass(frozen=True)
class CachedFolder:
    """An entry of the cache, of images or of features."""

    path: Path
    kind: str  # features or images
    bytes: int  # on disk
    used: float  # when a file of it was last read or written, in seconds since 1970


def cached_folders() -> list[CachedFolder]:
    """All entries of the cache, the largest first."""
    folders = []
    root = cache_folder()
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        files = [path / name for name in ENTRY_FILES if (path / name).is_file()]
        if path.is_symlink() or not (path / "about.json").is_file():
            continue
        states = [file.stat() for file in files]
        folders.append(
            CachedFolder(
                path=path,
                kind="features" if (path / "features.bin").is_file() else "images",
                bytes=sum(getattr(state, "st_blocks", 0) * 512 for state in states),
                used=max(max(state.st_atime, state.st_mtime) for state in states),
            )
        )
    return sorted(folders, key=lambda folder: -folder.bytes)


def remove_cached_folder(folder: CachedFolder) -> None:
    """Delete the files of an entry, and its folder where nothing else is in it."""
    for name in ENTRY_FILES:
        (folder.path / name).unlink(missing_ok=True)
    if not any(folder.path.iterdir()):
        folder.path.rmdir()

"""The one writer of files: whole or not at all, and never through a link; and values as TOML and
JSON can hold them.

A folder may come from a stranger. A link in it would lead what we write to another place, so no
link is followed below the folder that the user named: neither the file's own name, nor that of a
folder on the way. Temporary files have names that nobody can guess and must not exist. Private
files (images, scores, a client's memory) are for their owner only, whatever the umask says.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from feddraw.errors import RunFailed, UserError
from feddraw.system.locks import NOFOLLOW, flock, kernel_locks

PRIVATE = 0o600
PUBLIC = 0o666  # less what the umask takes away
PRIVATE_FOLDER = 0o700
TEMPORARY = ".feddraw-"  # how the names of temporary files begin


def write_whole(path: Path, content: bytes, *, private: bool = False) -> None:
    """All or nothing: to a temporary file, to the disk, then under its name, and the name to the
    disk.
    """
    with write_errors_told(path):
        refuse_link(path)
        _remove_left_behind(path.parent)
        while not _write_temporary(path, content, private):
            pass
        fsync_folder(path.parent)


def write_json(path: Path, document: Any) -> None:
    """A document that people may read, too."""
    write_whole(path, (json.dumps(document, indent=2) + "\n").encode())


def append_to_log(path: Path, text: str) -> None:
    """A line to a log, and to the disk."""
    with write_errors_told(path), open_file(path, "a") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def open_file(path: Path, mode: str, *, private: bool = False) -> Iterator[IO[Any]]:
    """Like `open`, in UTF-8, but not through a link; a private file that others may read is closed
    to them.
    """
    refuse_link(path)
    encoding, newline = (None, None) if "b" in mode else ("utf-8", "")
    opener = partial(_open_without_link, 0, PRIVATE if private else PUBLIC)
    with io.open(path, mode, encoding=encoding, newline=newline, opener=opener) as file:  # noqa: UP020
        if private:
            close_to_others(path)
        yield file


def make_folder(path: Path, *, private: bool = False) -> None:
    """A folder with those above it; each new entry is on the disk before anything is written below
    it.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True, mode=PRIVATE_FOLDER if private else 0o777)
    fsync_folder(path.parent)


def make_subfolder(path: Path, *, private: bool = False) -> None:
    """A folder of ours below one that the user named: not a link, and closed to others if it is
    private.
    """
    refuse_link(path)
    make_folder(path, private=private)
    if private:
        close_to_others(path)


def close_to_others(*paths: Path) -> None:
    """What a copy left open to other users of the machine is for its owner only."""
    for path in paths:
        with suppress(OSError):  # not there, or somebody else's, who chose its mode
            mode = path.lstat().st_mode
            if mode & 0o077 and not stat.S_ISLNK(mode):
                path.chmod(stat.S_IMODE(mode) & PRIVATE_FOLDER)


def refuse_link(path: Path) -> None:
    """Stop at a link, or at what is neither a file nor a folder: writing there would change
    something else.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # not there, or for the system to say what is wrong with it
    if stat.S_ISLNK(mode):
        raise UserError(
            f"{path} is a link and may lead out of its folder: remove it, or choose another place"
        )
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{path} is no regular file: remove it, or choose another place")


def require_writable_place(path: Path) -> None:
    """Before long work whose result goes to this file: its folder is made, and a place that cannot
    be used is told.
    """
    with write_errors_told(path):
        refuse_link(path)
        make_folder(path.parent)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def nearest_existing(path: Path) -> Path:
    """The path itself, or the nearest above it that exists."""
    return next(place for place in (path, *path.parents) if place.exists())


def fsync_folder(path: Path) -> None:
    """A folder's entries to the disk; Windows does not open folders, and writes these by itself."""
    if not kernel_locks():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def write_errors_told(path: Path) -> Iterator[None]:
    """A full disk or a folder gone read-only, in one line."""
    try:
        yield
    except OSError as error:
        failed = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
        kind = RunFailed if failed else UserError
        raise kind(
            f"cannot write {path}: {error.strerror}; what was written before is kept"
        ) from None


def _open_without_link(more: int, mode: int, path: str, flags: int) -> int:
    return os.open(path, flags | more | NOFOLLOW, mode)


def _write_temporary(path: Path, content: bytes, private: bool) -> bool:
    """To a file that was not there, locked while it is open so that nobody takes it for one left
    behind.

    False in the rare case that somebody did so before it was locked.
    """
    part = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}.part")
    opener = partial(_open_without_link, os.O_EXCL, PRIVATE if private else PUBLIC)
    try:
        with io.open(part, "wb", opener=opener) as file:  # noqa: UP020
            with suppress(OSError):  # a file system without locks
                flock(file.fileno(), shared=True)
            if not os.fstat(file.fileno()).st_nlink:
                return False
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if kernel_locks():
                part.replace(path)  # while it is locked
        if not kernel_locks():
            part.replace(path)  # Windows renames closed files only
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)  # on a full disk it would be in the way
        raise
    return True


def _remove_left_behind(folder: Path) -> None:
    """Temporary files whose writer is dead: the kernel has let go of their locks."""
    if not kernel_locks():
        return  # one that is in use cannot be told from one left behind
    with os.scandir(folder) as entries:
        temporary = [
            entry.path
            for entry in entries
            if entry.name.startswith(TEMPORARY) and entry.name.endswith(".part")
        ]
    for path in temporary:
        with suppress(OSError):  # a link, in use, or gone by now
            handle = os.open(path, os.O_RDONLY | NOFOLLOW | os.O_NONBLOCK)
            try:
                flock(handle)
                Path(path).unlink()
            finally:
                os.close(handle)


def toml_values(value: Any) -> Any:
    """Without None, as TOML has no word for it, and with lists for tuples."""
    if isinstance(value, Mapping):
        return {key: toml_values(item) for key, item in value.items() if item is not None}
    return [toml_values(item) for item in value] if isinstance(value, list | tuple) else value


def finite_or_none(value: float) -> float | None:
    """For JSON, where null stands for every number that is not finite."""
    return float(value) if math.isfinite(value) else None


def json_values(value: Any) -> Any:
    """For JSON, which has no NaN or infinity: undefined numbers become null, infinite thresholds
    words.
    """
    if isinstance(value, Mapping):
        return {key: json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value

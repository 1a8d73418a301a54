"""Locks between processes. The kernel releases them when their holder ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from feddraw.errors import UserError


@contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Hold a folder, or refuse at once if another process holds it."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"cannot open {path}: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        busy = isinstance(error, BlockingIOError)
        reason = f"another process is running in {path}" if busy else f"cannot lock {path}: {error.strerror}"
        raise UserError(reason) from None
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold a file that several processes read and replace; wait while another process holds it.

    The lock is a file beside it: the file itself gets a new inode whenever it is replaced. A file and not the folder,
    because network file systems pass on locks of files to other machines, but not those of folders.
    """
    beside = path.with_name(f".{path.name}.lock")
    while True:
        try:
            handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
        fcntl.flock(handle, fcntl.LOCK_EX)
        if _is_still_there(handle, beside):
            break
        os.close(handle)  # the holder before us has removed it: whoever comes now makes a new one
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)
        os.close(handle)


def _is_still_there(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def locked_inodes() -> frozenset[int] | None:
    """The inodes of all files and folders that some process holds, without touching any; None where none can tell."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    held = (line.split() for line in lines if "FLOCK" in line and "WRITE" in line and "->" not in line)
    return frozenset(int(words[5].rpartition(":")[2]) for words in held)

"""Locks between processes. The kernel releases them when their holder ends, however it ends.

Where there is no `fcntl` (Windows), a lock is a file that must not be there yet. It stays behind if
its holder is killed, so messages name it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from feddraw.errors import UserError

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag
LONGEST_WAIT = 60.0  # seconds to wait for a lock that may have been left behind


def flock(handle: int, *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file or folder until it is closed, where there are such locks; BlockingIOError
    if another has it.
    """
    if kernel_locks():
        import fcntl

        fcntl.flock(
            handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        )


def kernel_locks() -> bool:
    """Whether locks end with their holder."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Hold a folder, or refuse at once if another process holds it."""
    if not kernel_locks():
        # A folder that is used has files in it.
        beside = path.resolve().with_name(f".{path.resolve().name}.lock")
        with _lock_by_file(beside, f"another process is using {path}", longest=0.0):
            yield
        return
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"cannot open {path}: {error.strerror}") from None
    try:
        try:
            flock(handle)
        except BlockingIOError:
            raise UserError(
                f"another process is using {path}: wait until it ends, or choose another folder"
            ) from None
        except OSError as error:
            raise UserError(f"cannot lock {path}: {error.strerror}") from None
        yield
    finally:
        os.close(handle)


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold a file that several processes read and replace; wait while another process holds it.

    The lock is a file beside it: the file itself gets a new inode whenever it is replaced. A file
    and not the folder, because network file systems pass on locks of files to other machines, but
    not those of folders.
    """
    beside = path.with_name(f".{path.name}.lock")
    if not kernel_locks():
        with _lock_by_file(beside, f"another process is writing {path}", LONGEST_WAIT):
            yield
        return
    while True:
        try:
            handle = os.open(beside, os.O_RDWR | os.O_CREAT | NOFOLLOW, 0o666)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
        flock(handle, wait=True)
        if _lock_file_is_there(handle, beside):
            break
        os.close(handle)  # the holder before us has removed it: whoever comes now makes a new one
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)
        os.close(handle)


@contextmanager
def _lock_by_file(lock: Path, busy: str, longest: float) -> Iterator[None]:
    """A lock for systems without the kernel's: whoever can make the file has it."""
    deadline = time.monotonic() + longest
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            break
        except FileExistsError:
            if time.monotonic() >= deadline:
                raise UserError(
                    f"{busy}: wait until it ends; if none is running, delete {lock}"
                ) from None
            time.sleep(0.05)
        except OSError as error:
            raise UserError(f"cannot write {lock}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _lock_file_is_there(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def locked_inodes() -> frozenset[int] | None:
    """The inodes of all files and folders that some process holds, without touching any; None where
    none can tell.
    """
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    held = (
        line.split() for line in lines if "FLOCK" in line and "WRITE" in line and "->" not in line
    )
    return frozenset(int(words[5].rpartition(":")[2]) for words in held)

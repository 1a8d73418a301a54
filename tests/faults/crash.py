"""Commands of the package in forked processes that die at a chosen moment. The package itself knows
nothing of it.

Torch is imported once, here; every command then starts in milliseconds. A trap is set in the child
before its `main`: at the n-th call of a chosen function it sends SIGKILL to itself, so that no
handler and no `finally` runs.
"""

from __future__ import annotations

import io
import mmap
import multiprocessing
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import feddraw.cli.terminal
import feddraw.data.datasets.phantom
import feddraw.data.image_cache
import feddraw.experiment.running
from feddraw import cli

torch.set_num_threads(1)
feddraw.data.datasets.phantom.draw_phantom_block = cache(
    feddraw.data.datasets.phantom.draw_phantom_block
)
feddraw.data.datasets.phantom.phantom(size=28, train=96, validation=48, test=48)  # drawn here, once
fork = multiprocessing.get_context("fork")
multiprocessing.get_context = lambda method=None: fork  # workers, too, start in milliseconds
feddraw.data.image_cache.CHUNK = 16  # more moments in a small preparation

# Where a process can be told to die, in the words of the table, and what is called there.
CALLS = {
    "a step of training": ("feddraw.training.loop", "loss_and_gradient"),
    "aggregation": ("feddraw.server.collectors", "stepped"),
    "inside a weighted sum": ("feddraw.core.sums", "weighted_sum"),
    "the gate": ("feddraw.server.gate", "accept"),
    "evaluation": ("feddraw.engines.serial", "Serial.predict"),
    "before the ledger": ("feddraw.results.run_folder", "RunFolder.add_round"),
    "making a checkpoint": ("feddraw.results.run_folder", "RunFolder.save_checkpoint"),
    "dropping cut-off lines": ("feddraw.results.run_folder", "RunFolder.forget_from"),
    "the last files": ("feddraw.results.run_folder", "RunFolder.finish"),
    "preparing a chunk": ("feddraw.data.image_cache", "CacheChunkJob.__call__"),
    "before fsync": ("os", "fsync"),
    "before a rename": ("pathlib", "Path.replace"),
}
WRITES = {"half a file written": "w", "half a line written": "a", "half a chunk written": "+"}
AFTER = {"after a rename": ("pathlib", "Path.replace")}
POINTS = (*CALLS, *WRITES, *AFTER)


@dataclass(frozen=True)
class Moment:
    """The n-th time that a process comes to a point; n counts from zero."""

    point: str
    call: int


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, negative for a signal, and what it printed."""

    code: int
    said: str
    seconds: float


def die() -> None:
    """All of the command's processes at once, as when the power goes."""
    os.killpg(os.getpgrp(), signal.SIGKILL)
    time.sleep(60)  # the signal is delivered before this returns


# -------------------------------------------------------------------------------------------- traps


def at_call(when: Moment | None, note: Callable[[str], None]) -> None:
    """Set the trap, or, without a moment, note every call of every point."""
    for point, place in CALLS.items():
        if when is None or when.point == point:
            wrap(place, partial(before, trigger(point, when, note)))
    for point, place in AFTER.items():
        if when is None or when.point == point:
            wrap(place, partial(after, trigger(point, when, note)))
    chosen = {
        mode: trigger(point, when, note)
        for point, mode in WRITES.items()
        if when is None or when.point == point
    }
    if chosen:
        io.open = partial(torn, io.open, chosen, when is not None)  # type: ignore[assignment]


def trigger(point: str, when: Moment | None, note: Callable[[str], None]) -> Callable[[], bool]:
    """Counts its calls, also those of worker processes; true when the moment has come."""
    calls = mmap.mmap(-1, 8)  # shared with whatever is forked later

    def reached() -> bool:
        count = struct.unpack("q", calls[:])[0] + 1
        calls[:] = struct.pack("q", count)
        if when is None:
            note(point)
        return when is not None and count == when.call + 1

    return reached


def wrap(place: tuple[str, str], change: Callable[[Any], Any]) -> None:
    """Replace a function where it is defined, and where another module has imported it by name."""
    module = import_module(place[0])
    *owners, name = place[1].split(".")
    owner = getattr(module, owners[0]) if owners else module
    old = getattr(owner, name)
    new = change(old)
    setattr(owner, name, new)
    for other in [m for n, m in sys.modules.items() if n.startswith("feddraw.")]:
        if not owners and getattr(other, name, None) is old:
            setattr(other, name, new)


def before(reached: Callable[[], bool], old: Any) -> Any:
    @wraps(old)
    def new(*args: Any, **kwargs: Any) -> Any:
        if reached():
            die()
        return old(*args, **kwargs)

    return new


def after(reached: Callable[[], bool], old: Any) -> Any:
    @wraps(old)
    def new(*args: Any, **kwargs: Any) -> Any:
        result = old(*args, **kwargs)
        if reached():
            die()
        return result

    return new


def torn(
    old: Any,
    chosen: dict[str, Callable[[], bool]],
    deadly: bool,
    file: Any,
    mode: str = "r",
    *args: Any,
    **more: Any,
) -> Any:
    """Open a file; the chosen one takes half of what is written to it, and then the process
    dies.
    """
    opened = old(file, mode, *args, **more)
    reached = next((found for letter, found in chosen.items() if letter in mode), None)
    ours = "lock" not in str(file)  # nothing is ever read from it but who holds it
    if ours and reached is not None and reached() and deadly:
        return Torn(opened)
    return opened


class Torn:
    """A file whose first write is its last."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Torn:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, content: Any) -> None:
        self.file.write(content[: len(content) // 2])
        self.file.flush()
        die()


# ----------------------------------------------------------------------------------------- commands


def start(words: Sequence[str], output: Path, set_trap: Callable[[], None] = lambda: None) -> int:
    """The process id of `feddraw WORDS` in a session of its own."""
    sys.stdout.flush()
    output.touch()
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        said = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8") for number in (1, 2))
        sys.argv = ["feddraw", *words]
        set_trap()
        cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException as error:
        print(repr(error), file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(child: int, output: Path, began: float, limit: float = 120) -> Ended:
    """Until it has ended; whatever is left of its session ends with it."""
    late = False
    while not late:
        late = (
            time.monotonic() > began + limit
        )  # looked at once more after that: we may have been stopped meanwhile
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            await_session(child)
            seconds = time.monotonic() - began
            return Ended(
                os.waitstatus_to_exitcode(status), output.read_text(encoding="utf-8"), seconds
            )
        time.sleep(0.002)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Ended(
        -signal.SIGALRM,
        f"still running after {limit} s: {output.read_text(encoding='utf-8')}",
        limit,
    )


def await_session(child: int) -> None:
    """Until the workers, too, are gone: they must not outlive their parent by a second."""
    for _ in range(1000):
        try:
            os.killpg(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.002)
    os.killpg(child, signal.SIGKILL)
    raise AssertionError("workers went on for two seconds after their parent was gone")


def command(words: Sequence[str], output: Path, moment: Moment | None = None) -> Ended:
    """Run a command, to its end or to a moment."""
    began = time.monotonic()
    trap = partial(at_call, moment, lambda _: None) if moment else lambda: None
    return wait(start(words, output, trap), output, began)


def killed_after(
    words: Sequence[str], output: Path, seconds: float, first: Callable[[], bool]
) -> Ended:
    """Run a command and kill it from outside, so many seconds after something is there."""
    began = time.monotonic()
    child = start(words, output)
    while not first() and not finished(child) and time.monotonic() < began + 120:
        time.sleep(0.001)
    if not finished(child):
        time.sleep(seconds)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    return wait(child, output, began)


def finished(child: int) -> bool:
    """Whether it has ended; its status stays to be fetched."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def calls(words: Sequence[str], output: Path, progress: Callable[[], int]) -> list[tuple[str, int]]:
    """Every call of every point in an undisturbed command, with the progress at that time."""
    notes = output.with_suffix(".calls")

    def trap() -> None:
        handle = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        at_call(None, lambda point: os.write(handle, f"{point}\t{progress()}\n".encode()) and None)

    began = time.monotonic()
    ended = wait(start(words, output, trap), output, began)
    assert ended.code == 0, ended.said
    pairs = (line.split("\t") for line in notes.read_text(encoding="utf-8").splitlines())
    return [(point, int(done)) for point, done in pairs]

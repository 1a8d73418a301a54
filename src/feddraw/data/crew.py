"""A few worker processes that take the next piece of work whenever they are free, and end when their parent does.

Also how many there may be.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from feddraw.errors import RunFailed

MOST_PER_CORE = 4  # more only take memory from one another


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limited(workers: int) -> int:
    """So many worker processes: 0 is one a core; more than a few a core are not started, and it is said."""
    most = MOST_PER_CORE * cores()
    if workers > most:
        why = f"{MOST_PER_CORE} for each of the {cores()} core(s) here"
        warnings.warn(f"{workers} workers are more than this machine can use: {most} start, {why}", stacklevel=2)
    return min(workers or cores(), most)


def in_workers(job: Callable[[int], Any], pieces: Iterable[int], workers: int) -> Iterator[tuple[int, Any]]:
    """(piece, job(piece)) as they get ready; whatever the job raises is raised here."""
    waiting = iter(pieces)
    crew = dict(hire(job) for _ in range(workers))
    try:
        while crew:
            for pipe in wait(list(crew)):
                assert isinstance(pipe, Connection)
                reply = hear(pipe, crew[pipe])
                piece = next(waiting, None)
                pipe.send(piece)
                if piece is None:
                    crew.pop(pipe).join()
                if reply is not None:
                    yield reply
    finally:
        for process in crew.values():
            process.terminate()
            process.join()


def hire(job: Callable[[int], Any]) -> tuple[Connection, SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(there, job), daemon=True)
    process.start()
    there.close()  # or the pipe would not tell when the worker is gone
    return here, process


def hear(pipe: Connection, process: SpawnProcess) -> tuple[int, Any] | None:
    """A worker's result, or nothing when it has just begun."""
    try:
        reply = pipe.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        raise RunFailed(
            f"a worker that prepared images ended with code {process.exitcode}; what is done is kept: "
            "start again to go on, with fewer workers if the memory ran out"
        ) from None
    if isinstance(reply, Exception):
        raise reply
    result: tuple[int, Any] | None = reply
    return result


def work(pipe: Connection, job: Callable[[int], Any]) -> None:
    """What a worker does: report for work, then do pieces until there are none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who then ends this process
    threading.Thread(target=end_with_parent, daemon=True).start()
    pipe.send(None)
    while (piece := pipe.recv()) is not None:
        try:
            pipe.send((piece, job(piece)))
        except Exception as error:
            pipe.send(error)


def end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)

"""Worker processes: how many there may be, how one starts and ends, and what it died of.

Every pool of workers is made of these: the processes engine, a study, and `in_workers`, which
prepares images.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from feddraw.errors import RunFailed
from feddraw.system.machine import cores

MOST_PER_CORE = 4  # more only take memory from one another


def limited_workers(workers: int) -> int:
    """The number of worker processes to start: 0 means one per core; too many are reduced with a
    warning.
    """
    most = MOST_PER_CORE * cores()
    if workers > most:
        why = f"{MOST_PER_CORE} for each of the {cores()} core(s) here"
        warnings.warn(
            f"{workers} workers are too many for this machine: starting {most}, {why}", stacklevel=2
        )
    return min(workers or cores(), most)


def in_workers(
    job: Callable[[int], Any], items: Iterable[int], workers: int, *, doing: str, then: str
) -> Iterator[tuple[int, Any]]:
    """(item, job(item)) as they get ready; whatever the job raises is raised here.

    `doing` and `then` are what the message about a worker that died says: at what, and what to do.
    """
    waiting = iter(items)
    running = dict(start_worker(serve_pieces, job) for _ in range(workers))
    try:
        while running:
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                reply = receive_result(pipe, running[pipe], doing, then)
                item = next(waiting, None)
                send_piece(pipe, running[pipe], item, doing, then)
                if item is None:
                    running.pop(pipe).join()
                if reply is not None:
                    yield reply
    finally:
        stop_workers(running.items())


def start_worker(target: Callable[..., None], *arguments: Any) -> tuple[Connection, SpawnProcess]:
    """A fresh process that runs `target(pipe, *arguments)`, and this end of its pipe."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, *arguments), daemon=True)
    process.start()
    there.close()  # or the pipe would not tell when the worker is gone
    return here, process


def stop_workers(workers: Collection[tuple[Connection, SpawnProcess]]) -> None:
    """End workers, whatever they are doing, and wait until they have ended."""
    for pipe, process in workers:
        pipe.close()
        process.terminate()
    for _, process in workers:
        process.join()


def belong_to_parent() -> None:
    """What a worker does first: leave Ctrl-C to its parent, and end when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def cause_of_death(process: SpawnProcess) -> tuple[str, str]:
    """How a worker ended, and what to do about it."""
    process.join(timeout=1)
    code = process.exitcode or 0
    names = {int(one): one.name for one in signal.Signals}  # without those for real time
    how = (
        f"was killed ({names.get(-code, f'signal {-code}')})"
        if code < 0
        else f"ended with code {code}"
    )
    advice = {"SIGKILL": "; out of memory? try fewer workers"}
    advice["SIGBUS"] = "; no shared memory left? enlarge /dev/shm, or try engine = serial"
    return how, advice.get(names.get(-code, ""), "")


def send_piece(
    pipe: Connection, process: SpawnProcess, piece: int | None, doing: str, then: str
) -> None:
    """The next piece for a worker, or that there is none."""
    try:
        pipe.send(piece)
    except OSError:
        if piece is not None:  # else its work is done
            raise _worker_died(process, doing, then) from None


def receive_result(
    pipe: Connection, process: SpawnProcess, doing: str, then: str
) -> tuple[int, Any] | None:
    """A worker's result, or nothing when it has just begun."""
    try:
        reply: tuple[int, Any] | Exception | None = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise _worker_died(process, doing, then) from None
    if isinstance(reply, Exception):
        raise reply
    return reply


def _worker_died(process: SpawnProcess, doing: str, then: str) -> RunFailed:
    how, advice = cause_of_death(process)
    return RunFailed(f"a worker that {doing} {how}{advice}; {then}")


def serve_pieces(pipe: Connection, job: Callable[[int], Any]) -> None:
    """What a worker does: report for work, then do pieces until there are none."""
    belong_to_parent()
    pipe.send(None)
    while (piece := pipe.recv()) is not None:
        try:
            pipe.send((piece, job(piece)))
        except Exception as error:
            pipe.send(error)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)

"""Worker processes: how many there may be, how one is started, asked, answered and stopped.

A worker is a fresh process with a pipe to its parent. The parent sends requests and receives
replies; the worker answers them in their order (`serve`). What a job raises is raised in the
parent, and a worker that has died raises `WorkerDied`, which says what it died of.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from feddraw.errors import RunFailed
from feddraw.system.machine import cores

MOST_PER_CORE = 4  # more only take memory from one another
# seconds of work for one process from which on it pays to start others, which takes seconds
WORKERS_PAY = 8.0
ADVICE = {  # by the signal that killed a worker
    "SIGKILL": "; out of memory? try fewer workers",
    "SIGBUS": "; no shared memory left? enlarge /dev/shm, or try engine = serial",
}


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


# -------------------------------------------------------------------------------------- the parent


class WorkerDied(RunFailed):
    """A worker ended before it replied."""

    def __init__(self, exit_code: int) -> None:
        names = {int(number): number.name for number in signal.Signals}  # none for real-time ones
        name = names.get(-exit_code, f"signal {-exit_code}")
        self.how = f"was killed ({name})" if exit_code < 0 else f"ended with code {exit_code}"
        self.advice = ADVICE.get(name, "")
        super().__init__(f"a worker {self.how}{self.advice}")


class Worker:
    """A process that runs `target(pipe, *arguments)`, seen from its parent."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, its_pipe = context.Pipe()
        self.process = context.Process(
            target=_live_with_parent, args=(its_pipe, target, arguments), daemon=True
        )
        with _ctrl_c_held_back():
            self.process.start()
        its_pipe.close()  # or the pipe would not tell when the worker is gone

    def send(self, request: Any) -> None:
        """Hand a request over, which waits until earlier ones are answered."""
        try:
            self.pipe.send(request)
        except OSError:
            raise self.death() from None

    def receive(self) -> Any:
        """The next reply, when it comes; if the job raised an exception, that is raised.

        The exception's notes hold the worker's traceback.
        """
        try:
            reply = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self.death() from None
        if isinstance(reply, Exception):
            raise reply
        return reply

    def death(self) -> WorkerDied:
        """What to raise for a worker whose pipe has closed."""
        self.process.join(timeout=1)
        return WorkerDied(self.process.exitcode or 0)


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """Ctrl-C waits until the end of the block, and never reaches a process that is started in it:
    a child keeps the signals that its parent held back, also while it imports.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # starting it would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait_for_replies(workers: Iterable[Worker]) -> list[Worker]:
    """Those of the workers that have a reply or have died, as soon as there is one."""
    workers = list(workers)
    ready = wait([worker.pipe for worker in workers])
    return [worker for worker in workers if worker.pipe in ready]


def stop_workers(workers: Collection[Worker]) -> None:
    """End workers, whatever they are doing, and wait until they have ended."""
    for worker in workers:
        worker.pipe.close()
        worker.process.terminate()
    for worker in workers:
        worker.process.join()


def ask_in_process(function: Callable[[Any], Any], request: Any) -> Any:
    """`function(request)`, computed by a fresh process that ends afterwards."""
    worker = Worker(serve, function)
    try:
        worker.send(request)
        return worker.receive()
    finally:
        stop_workers([worker])


def in_workers(
    job: Callable[[int], Any], items: Iterable[int], workers: int, *, doing: str, then: str
) -> Iterator[tuple[int, Any]]:
    """(item, job(item)) as they get ready; whatever the job raises is raised here.

    `doing` and `then` are what the message about a worker that died says: at what, and what to do.
    """
    pending = deque(items)
    team = [Worker(serve, job) for _ in range(workers)]
    idle = list(team)
    busy: dict[Worker, int] = {}
    finished: list[tuple[int, Any]] = []
    try:
        while pending or busy or finished:
            while pending and idle:
                worker = idle.pop()
                busy[worker] = pending.popleft()
                worker.send(busy[worker])
            yield from finished  # while the workers are at their next items
            finished = []
            for worker in wait_for_replies(busy) if busy else ():
                finished.append((busy.pop(worker), worker.receive()))
                idle.append(worker)
    except WorkerDied as death:
        raise RunFailed(f"a worker that {doing} {death.how}{death.advice}; {then}") from None
    finally:
        stop_workers(team)


def in_workers_if_they_pay(
    job: Callable[[int], Any],
    items: Sequence[int],
    workers: int,
    *,
    for_workers: Callable[[], Callable[[int], Any]] | None = None,
    doing: str,
    then: str,
) -> Iterator[tuple[int, Any]]:
    """As `in_workers`, where the rest takes longer than workers take to start: the time of the
    first item, which this process does itself, tells.

    `for_workers` makes the job as workers get it, if that is another. A worker process may not
    start others: it works alone.
    """
    begun = time.perf_counter()
    yield items[0], job(items[0])
    rest = items[1:]
    left = (time.perf_counter() - begun) * len(rest)
    may_start_others = workers > 1 and not multiprocessing.current_process().daemon
    if may_start_others and len(rest) > 1 and left > WORKERS_PAY:
        shared_job = job if for_workers is None else for_workers()
        yield from in_workers(shared_job, rest, min(workers, len(rest)), doing=doing, then=then)
    else:
        yield from ((item, job(item)) for item in rest)


# -------------------------------------------------------------------------------------- the worker


def serve(pipe: Connection, answer: Callable[[Any], Any]) -> None:
    """Answer requests in their order until the parent closes the pipe."""
    with suppress(EOFError, OSError):
        while True:
            request = pipe.recv()
            pipe.send(_reply(answer, request))


def _reply(answer: Callable[[Any], Any], request: Any) -> Any:
    """The answer, or the exception in its place: as it is if it survives the pipe, else in
    words.
    """
    try:
        return answer(request)
    except Exception as error:
        trace = traceback.format_exc()
        portable = error if _survives_pipe(error) else RunFailed(f"{type(error).__name__}: {error}")
        portable.add_note(trace)
        return portable


def _survives_pipe(error: Exception) -> bool:
    try:
        copy.copy(error)  # made from its arguments, as at the other end of the pipe
    except Exception:
        return False
    return True


def _live_with_parent(
    pipe: Connection, target: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    """What every worker does first: leave Ctrl-C to its parent, and end when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    target(pipe, *arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)

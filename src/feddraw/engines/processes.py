"""The processes engine: persistent workers that share memory with this process.

Models, updates and data lie in shared memory; pipes carry names and numbers only. Clients with most
images start first, each on the next free worker. Seeds come with the jobs and every client trains
on one thread, so the bits are those of the serial engine for any number of workers.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feddraw.core import Job, Local, Model, Update
from feddraw.engines import Engine, Rows, Scores
from feddraw.engines._memory import EngineWithMemory, Inbox
from feddraw.errors import OutOfMemory, RunFailed, UserError
from feddraw.system.shared_memory import SharedArrays, SharedHandle, attach_shared
from feddraw.system.workers import Worker, WorkerDied, serve, stop_workers, wait_for_replies
from feddraw.training.client import Trainer, client_memory_extents
from feddraw.training.device_memory import allot_image_memory, memory_shortage_told
from feddraw.training.devices import WorkerPlace
from feddraw.training.loop import Examples, predict
from feddraw.training.network import Build
from feddraw.training.objective import Objective
from feddraw.training.settings import Training

# images that a worker predicts at a time: a multiple of the batch, so that batches stay the same
PREDICTED_CHUNK = 1024


# ---------------------------------------------------------------------------------------- messages


@dataclass(frozen=True, eq=False)
class Shards:
    """All clients' rows, one client behind the other, and where each begins and ends."""

    rows: SharedHandle
    ends: SharedHandle


@dataclass(frozen=True, eq=False)
class WorkerPlan:
    """What a worker gets once, at its start."""

    build: Build
    training: Training
    local: Local
    objective: Objective
    asks: tuple[str, ...]
    mean: float
    std: float
    copies: int
    shards: Shards
    arrays: Mapping[str, SharedHandle]


@dataclass(frozen=True)
class TrainRequest:
    """A job without its vectors, which lie in shared memory."""

    round: int
    rounds: int
    client: int
    seed: int
    effort: float
    row: int  # of the inbox, where the trained model goes
    memory: tuple[str, ...]  # names of what the client remembers
    broadcast: Mapping[str, SharedHandle]


@dataclass(frozen=True, eq=False)
class TrainReply:
    """An update without its vectors."""

    client: int
    size: float
    steps: int | None
    metrics: Mapping[str, float]
    labelled: NDArray[np.bool_] | None
    seconds: float
    learnt: tuple[str, ...]  # names of what the client would remember


@dataclass(frozen=True)
class PredictRequest:
    """Scores of the images that are listed in the shared query from `start` to `stop`."""

    start: int
    stop: int


Request = TrainRequest | PredictRequest
Reply = TrainReply | None  # scores go into shared memory


# ------------------------------------------------------------------------------- the engine's side


def processes(prepared: Any, workers: int) -> Engine:
    """Worker processes that share memory with this one."""
    return Processes(
        prepared.trainer,
        workers,
        prepared.clients,
        in_turn=prepared.experiment.stream,
        places=prepared.places,
    )


@dataclass
class _Assignment:
    """Which requests wait, and which are with which worker, by their numbers."""

    requests: Sequence[Request]
    waiting: deque[int]
    assigned: dict[Worker, deque[int]]


class Processes(EngineWithMemory):
    """Workers of this process; each builds a trainer like the one here."""

    def __init__(
        self,
        trainer: Trainer,
        workers: int,
        names: Sequence[str],
        *,
        in_turn: bool = False,
        places: Sequence[WorkerPlace] = (),
    ) -> None:
        super().__init__()
        self.trainer = trainer
        self.names = names
        self.layout = trainer.layout
        # updates that there is memory for at once
        self._rows = workers + 1 if in_turn else len(trainer.shards)
        self._shared = SharedArrays()
        self._arrays: dict[str, NDArray[Any]] = {}
        self._handles: dict[str, SharedHandle] = {}
        self._workers: dict[Worker, str] = {}  # each with its device
        try:
            self._reserve()
            self.steps_taken = self._arrays["steps_taken"]
            plan = self._plan()
            for place in places or [WorkerPlace(trainer.training.device)] * workers:
                self._workers[Worker(serve_jobs, plan, place)] = place.device
        except BaseException:
            self.close()
            raise

    def _reserve(self) -> None:
        """Take the shared memory, and put the data into it."""
        clients = len(self.trainer.shards)
        examples = self.trainer.examples
        images, findings = examples.targets.shape
        updates = Inbox.shapes(self.layout, self._rows, self.trainer.sends)
        for name, (shape, dtype) in updates.items():
            self._make(name, shape, dtype, sparse=True)  # not all clients are asked in every round
        for name, (shape, dtype) in Inbox.shapes(self.layout, 1, {}).items():
            self._make(f"sent.{name}", shape, dtype)
        remembered = client_memory_extents(self.trainer.local, self.trainer.training)
        for name, extent in remembered.items():
            shape = (clients, self.layout.extent(extent))
            for when in ("memory", "learnt"):  # before the round under way, and after it
                self._make(f"{when}.{name}", shape, np.float32, sparse=True)
        self._make("steps_taken", (clients,), np.int64)
        self._make("query", (images,), np.int64)
        self._make("scores", (images, findings), np.float32)
        for name in ("images", "targets", "groups", "patients"):
            if (array := getattr(examples, name)) is not None:
                self._handles[name] = self._shared.publish(array)

    def _make(self, name: str, shape: tuple[int, ...], dtype: Any, *, sparse: bool = False) -> None:
        self._arrays[name], self._handles[name] = self._shared.empty(shape, dtype, sparse=sparse)

    def _plan(self) -> WorkerPlan:
        trainer = self.trainer
        rows = np.concatenate([np.asarray(shard) for shard in trainer.shards])
        ends = np.cumsum([0, *map(len, trainer.shards)])
        return WorkerPlan(
            build=trainer.build,
            training=trainer.training,
            local=trainer.local,
            objective=trainer.objective,
            asks=trainer.asks,
            mean=trainer.examples.mean,
            std=trainer.examples.std,
            copies=trainer.examples.copies,
            shards=Shards(self._shared.publish(rows), self._shared.publish(ends)),
            arrays=dict(self._handles),
        )

    def _publish(self, model: Model) -> None:
        for name in ("params", "buffers", "counters"):
            self._arrays[f"sent.{name}"][0] = getattr(model, name)

    def train(self, jobs: Sequence[Job], *, in_turn: bool = False) -> Iterator[Update]:
        self._publish(jobs[0].model)
        self.steps_taken[:] = 0
        broadcast = self._publish_broadcast(jobs[0])
        rows = {job.client: number % self._rows for number, job in enumerate(jobs)}
        order = jobs
        if not in_turn:  # those with most images first, so that no worker is left with one at last
            order = sorted(jobs, key=lambda job: -len(self.trainer.shards[job.client]))
        requests = [self._train_request(job, rows[job.client], broadcast) for job in order]
        inbox = Inbox(self.layout, self._arrays)
        for reply in self._ask(requests, window=self._rows if in_turn else 0):
            assert reply is not None
            client = reply.client
            row = rows[client]
            self._learnt[client] = {
                name: self._arrays[f"learnt.{name}"][client] for name in reply.learnt
            }
            yield Update(
                client,
                inbox.model(row),
                size=reply.size,
                steps=reply.steps,
                metrics=reply.metrics,
                extra=inbox.extra_in_row(row),
                labelled=reply.labelled,
                seconds=reply.seconds,
            )

    def _train_request(
        self, job: Job, row: int, broadcast: Mapping[str, SharedHandle]
    ) -> TrainRequest:
        memory = self.memory.get(job.client, {})
        for name, vector in memory.items():  # there already, but for the first round after a resume
            self._memory_row(name, job.client)[...] = vector
        return TrainRequest(
            round=job.round,
            rounds=job.rounds,
            client=job.client,
            seed=job.seed,
            effort=job.effort,
            row=row,
            memory=tuple(memory),
            broadcast=broadcast,
        )

    def commit(self, clients: Collection[int]) -> None:
        super().commit(clients)
        for client in clients:  # out of the rows that the next round writes to
            for name, vector in self.memory.get(client, {}).items():
                row = self._memory_row(name, client)
                row[...] = vector
                self.memory[client][name] = row

    def _memory_row(self, name: str, client: int) -> NDArray[Any]:
        """Where workers find what a client remembers; taken from the system when it is first
        written to.
        """
        self._shared.reserve(self._handles[f"memory.{name}"], client)
        return np.asarray(self._arrays[f"memory.{name}"][client])

    def _publish_broadcast(self, job: Job) -> dict[str, SharedHandle]:
        """Where workers find the vectors that are sent beside the model; each gets its memory when
        it first appears.
        """
        for name, vector in job.broadcast.items():
            key = f"broadcast.{name}"
            if key not in self._arrays:
                self._make(key, vector.shape, vector.dtype)
            self._arrays[key][...] = vector
        return {name: self._handles[f"broadcast.{name}"] for name in job.broadcast}

    def predict(self, model: Model, rows: Rows) -> Scores:
        self._publish(model)
        self._arrays["query"][: len(rows)] = rows
        starts = range(0, len(rows), PREDICTED_CHUNK)
        requests = [
            PredictRequest(start, min(start + PREDICTED_CHUNK, len(rows))) for start in starts
        ]
        for _ in self._ask(requests):
            pass
        return self._arrays["scores"][: len(rows)].copy()

    def close(self) -> None:
        stop_workers(self._workers)
        self._workers.clear()
        self.steps_taken = np.zeros(len(self.trainer.shards), np.int64)  # the shared one goes
        self._arrays.clear()
        self._shared.close()

    def _ask(self, requests: Sequence[Request], window: int = 0) -> Iterator[Reply]:
        """Send each request to the next free worker, and yield the replies as they come.

        With a window, replies come in the order of the requests, and a request waits until fewer
        than so many replies are missing before it: its row may still be in use.
        """
        work = _Assignment(requests, deque(range(len(requests))), {})
        replies: dict[int, Reply] = {}
        yielded = 0
        while yielded < len(requests):
            self._hand_out(work, yielded + window if window else len(requests))
            number = yielded if window else next(iter(replies), -1)
            if number in replies:
                yield replies.pop(number)
                yielded += 1
            else:
                replies |= self._receive(work)

    def _hand_out(self, work: _Assignment, limit: int) -> None:
        """Send requests with numbers below the limit to workers that have none.

        While many are waiting, a worker gets the next one in advance, so that it need not wait
        between two.
        """
        for depth in (1, 2):
            for worker in self._workers:
                if not work.waiting or work.waiting[0] >= limit:
                    return
                if depth == 2 and len(work.waiting) <= 8 * len(self._workers):
                    return
                held = work.assigned.setdefault(worker, deque())
                if len(held) < depth:
                    request = work.requests[work.waiting[0]]
                    try:
                        worker.send(request)
                    except WorkerDied as death:
                        raise self._death(death, request) from None
                    held.append(work.waiting.popleft())

    def _receive(self, work: _Assignment) -> dict[int, Reply]:
        """Wait for replies, by number of their request.

        What a worker had no memory for is sent to another; a worker that has died ends the run.
        """
        replies: dict[int, Reply] = {}
        for worker in wait_for_replies(self._workers):
            held = work.assigned.get(worker)
            if not held:  # one that was asked nothing has nothing to say: it has died
                raise self._death(worker.death(), None)
            number = held.popleft()
            request = work.requests[number]
            try:
                replies[number] = worker.receive()
            except WorkerDied as death:
                raise self._death(death, request) from None
            except OutOfMemory as shortage:
                self._let_go(worker, f"{self._task(request)} failed: {shortage}")
                work.waiting.extendleft(reversed((number, *held)))
            except UserError:
                raise
            except Exception as error:
                print(*getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
                raise RunFailed(
                    f"{self._task(request)} failed: {type(error).__name__}: {error}"
                ) from None
        return replies

    def _let_go(self, worker: Worker, failure: str) -> None:
        """End a worker that had no memory, so that others on its device have more; the last of them
        may not go.
        """
        device = self._workers[worker]
        left = sum(other == device for other in self._workers.values()) - 1
        if not left:
            raise RunFailed(failure)
        warnings.warn(
            f"{device} has no memory for {left + 1} workers: going on with {left}", stacklevel=2
        )
        del self._workers[worker]
        stop_workers([worker])

    def _death(self, death: WorkerDied, request: Request | None) -> RunFailed:
        """How a worker ended, and at what."""
        return RunFailed(f"a worker {death.how} while {self._task(request)}{death.advice}")

    def _task(self, request: Request | None) -> str:
        if request is None:
            return "idle"
        if isinstance(request, TrainRequest):
            return f"training client {self.names[request.client]}"
        return "evaluating"


# ------------------------------------------------------------------------------- the worker's side


def serve_jobs(pipe: Connection, plan: WorkerPlan, place: WorkerPlace) -> None:
    """What a worker does: answer requests until the pipe closes."""
    torch.set_num_threads(1)
    allot_image_memory(place)
    training = replace(plan.training, device=place.device)
    serve(pipe, _JobWorker(replace(plan, training=training)))


class _JobWorker:
    def __init__(self, plan: WorkerPlan) -> None:
        self._arrays = {name: attach_shared(handle) for name, handle in plan.arrays.items()}
        rows = attach_shared(plan.shards.rows)
        ends = attach_shared(plan.shards.ends)
        examples = Examples(
            self._arrays["images"],
            self._arrays["targets"],
            mean=plan.mean,
            std=plan.std,
            groups=self._arrays.get("groups"),
            patients=self._arrays.get("patients"),
            copies=plan.copies,
        )
        self.trainer = Trainer(
            build=plan.build,
            examples=examples,
            shards=[rows[start:stop] for start, stop in pairwise(ends)],
            training=plan.training,
            local=plan.local,
            objective=plan.objective,
            asks=plan.asks,
        )
        self.trainer.steps_taken = self._arrays["steps_taken"]
        layout = self.trainer.network.layout
        self._inbox = Inbox(layout, self._arrays)
        self._sent = Model(
            self._arrays["sent.params"][0],
            self._arrays["sent.buffers"][0],
            self._arrays["sent.counters"][0],
            layout,
        )
        self._broadcast: dict[str, NDArray[Any]] = {}

    def __call__(self, request: Request) -> Reply:
        with memory_shortage_told(self.trainer):
            if isinstance(request, TrainRequest):
                return self._train(request)
            self._predict(request)
            return None

    def _train(self, request: TrainRequest) -> TrainReply:
        job = Job(
            round=request.round,
            rounds=request.rounds,
            client=request.client,
            seed=request.seed,
            model=self._sent,
            broadcast=self._attached(request.broadcast),
            effort=request.effort,
        )
        memory = {name: self._arrays[f"memory.{name}"][job.client] for name in request.memory}
        update, learnt = self.trainer.work(job, memory, into=self._inbox.model(request.row))
        for name, vector in update.extra.items():
            self._inbox.extra[name][request.row] = vector
        for name, vector in learnt.items():
            self._arrays[f"learnt.{name}"][job.client] = vector
        return TrainReply(
            client=update.client,
            size=update.size,
            steps=update.steps,
            metrics=dict(update.metrics),
            labelled=update.labelled,
            seconds=update.seconds,
            learnt=tuple(learnt),
        )

    def _attached(self, handles: Mapping[str, SharedHandle]) -> dict[str, NDArray[Any]]:
        """The vectors of this round's broadcast; each is attached to once."""
        for name, handle in handles.items():
            if name not in self._broadcast:
                self._broadcast[name] = attach_shared(handle)
        return {name: self._broadcast[name] for name in handles}

    def _predict(self, request: PredictRequest) -> None:
        self.trainer.network.load(self._sent)
        chunk = slice(request.start, request.stop)
        rows = self._arrays["query"][chunk]
        trainer = self.trainer
        scores = predict(trainer.network, trainer.examples, rows, trainer.objective)
        self._arrays["scores"][chunk] = scores

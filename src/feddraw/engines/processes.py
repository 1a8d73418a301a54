"""The processes engine: persistent workers that share memory with this process.

Models, updates and data lie in shared memory; pipes carry names and numbers only. Clients with most
images start first, each on the next free worker. Seeds come with the jobs and every client trains
on one thread, so the bits are those of the serial engine for any number of workers.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feddraw.core import Job, Local, Model, Update
from feddraw.engines import Engine, Rows, Scores
from feddraw.engines._memory import EngineInbox, EngineWithMemory
from feddraw.errors import OutOfMemory, RunFailed, UserError
from feddraw.system.shared_memory import SharedArrays, SharedHandle, attach_shared
from feddraw.system.workers import belong_to_parent, cause_of_death, start_worker, stop_workers
from feddraw.training.client import Trainer, client_memory_extents
from feddraw.training.device_memory import allot_image_memory, memory_shortage_told
from feddraw.training.devices import WorkerPlace
from feddraw.training.loop import Examples, Loss, predict
from feddraw.training.network import Build
from feddraw.training.settings import Training

PREDICTED_CHUNK = (
    1024  # images that a worker predicts at a time: a multiple of the batch, so that batches stay
)


@dataclass(frozen=True, eq=False)
class WorkerPlan:
    """What a worker gets once, at its start."""

    build: Build
    training: Training
    local: Local
    loss: Loss
    asks: tuple[str, ...]
    mean: float
    std: float
    shards: tuple[
        SharedHandle, SharedHandle
    ]  # all clients' rows behind one another, and where each begins
    arrays: Mapping[str, SharedHandle]


def processes(prepared: Any, workers: int) -> Engine:
    """Worker processes that share memory with this one."""
    places, in_turn = prepared.places, prepared.experiment.stream
    return Processes(prepared.trainer, workers, prepared.clients, in_turn=in_turn, places=places)


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
        self.trainer, self.names = trainer, names
        self._rows = (
            workers + 1 if in_turn else len(trainer.shards)
        )  # updates that there is room for
        self.layout = trainer.layout
        self._shared = SharedArrays()
        self._arrays: dict[str, NDArray[Any]] = {}
        self._handles: dict[str, SharedHandle] = {}
        self._workers: dict[Connection, SpawnProcess] = {}
        self._devices: dict[Connection, str] = {}
        try:
            self._reserve()
            self.steps_taken = self._arrays["steps_taken"]
            plan = self._plan()
            for place in places or [WorkerPlace(trainer.training.device)] * workers:
                pipe, self._workers[pipe] = start_worker(serve_jobs, plan, place)
                self._devices[pipe] = place.device
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------------------- what is shared

    def _reserve(self) -> None:
        clients, examples = len(self.trainer.shards), self.trainer.examples
        for name, (shape, dtype) in EngineInbox.shapes(
            self.layout, self._rows, self.trainer.sends
        ).items():
            self._make(name, shape, dtype, sparse=True)  # not all clients are asked in every round
        for name, (shape, dtype) in EngineInbox.shapes(self.layout, 1, {}).items():
            self._make(f"sent.{name}", shape, dtype)
        for name, extent in client_memory_extents(
            self.trainer.local, self.trainer.training
        ).items():
            for when in ("memory", "learnt"):  # before the round under way, and after it
                self._make(
                    f"{when}.{name}", (clients, self.layout.extent(extent)), np.float32, sparse=True
                )
        self._make("steps_taken", (clients,), np.int64)
        self._make("query", (len(examples.images),), np.int64)
        self._make("scores", (len(examples.images), examples.targets.shape[1]), np.float32)
        for name in ("images", "targets", "groups", "patients"):
            if (array := getattr(examples, name)) is not None:
                self._handles[name] = self._shared.publish(array)

    def _make(self, name: str, shape: tuple[int, ...], dtype: Any, *, sparse: bool = False) -> None:
        self._arrays[name], self._handles[name] = self._shared.empty(shape, dtype, sparse=sparse)

    def _plan(self) -> WorkerPlan:
        trainer = self.trainer
        rows = self._shared.publish(np.concatenate([np.asarray(shard) for shard in trainer.shards]))
        ends = self._shared.publish(np.cumsum([0, *map(len, trainer.shards)]))
        parts = (trainer.build, trainer.training, trainer.local, trainer.loss, trainer.asks)
        return WorkerPlan(
            *parts, trainer.examples.mean, trainer.examples.std, (rows, ends), dict(self._handles)
        )

    def _publish(self, model: Model) -> None:
        for name in ("params", "buffers", "counters"):
            self._arrays[f"sent.{name}"][0] = getattr(model, name)

    # ----------------------------------------------------------------------------------- the engine

    def train(self, jobs: Sequence[Job], *, in_turn: bool = False) -> Iterator[Update]:
        self._publish(jobs[0].model)
        self.steps_taken[:] = 0
        broadcast = self._broadcast(jobs[0])
        inbox = EngineInbox(self.layout, self._arrays)
        rows = {job.client: number % self._rows for number, job in enumerate(jobs)}
        requests = []
        for job in (
            jobs if in_turn else sorted(jobs, key=lambda job: -len(self.trainer.shards[job.client]))
        ):
            memory = self.memory.get(job.client, {})
            for (
                name,
                vector,
            ) in memory.items():  # already there, except in the first round after a resume
                self._memory_row(name, job.client)[...] = vector
            numbers = {
                name: getattr(job, name) for name in ("round", "rounds", "client", "seed", "effort")
            }
            requests.append(
                {
                    "train": numbers,
                    "row": rows[job.client],
                    "memory": list(memory),
                    "broadcast": broadcast,
                }
            )
        for reply in self._ask(requests, self._rows if in_turn else 0):
            client, row = reply["client"], rows[reply["client"]]
            self._learnt[client] = {
                name: self._arrays[f"learnt.{name}"][client] for name in reply["learnt"]
            }
            labelled = None if reply["labelled"] is None else np.array(reply["labelled"], bool)
            arguments = (
                reply["size"],
                reply["steps"],
                reply["metrics"],
                inbox.extra_in_row(row),
                labelled,
            )
            yield Update(client, inbox.model(row), *arguments, seconds=reply["seconds"])

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

    def _broadcast(self, job: Job) -> dict[str, Any]:
        """Where workers find the vectors that are sent beside the model; each gets its memory when
        it first appears.
        """
        for name, vector in job.broadcast.items():
            key = f"broadcast.{name}"
            if key not in self._arrays:
                self._make(key, vector.shape, vector.dtype)
            self._arrays[key][...] = vector
        return {name: vars(self._handles[f"broadcast.{name}"]) for name in job.broadcast}

    def predict(self, model: Model, rows: Rows) -> Scores:
        self._publish(model)
        self._arrays["query"][: len(rows)] = rows
        starts = range(0, len(rows), PREDICTED_CHUNK)
        requests = [
            {"predict": [start, min(start + PREDICTED_CHUNK, len(rows))]} for start in starts
        ]
        for _ in self._ask(requests):
            pass
        return self._arrays["scores"][: len(rows)].copy()

    def close(self) -> None:
        stop_workers(self._workers.items())
        self._workers.clear()
        self.steps_taken = np.zeros(len(self.trainer.shards), np.int64)  # the shared one goes
        self._arrays.clear()
        self._shared.close()

    # --------------------------------------------------------------------------- talking to workers

    def _ask(
        self, requests: Sequence[Mapping[str, Any]], window: int = 0
    ) -> Iterator[dict[str, Any]]:
        """Send each request to the next free worker, and yield the replies as they come.

        With a window, replies come in the order of the requests, and a request waits until fewer
        than so many replies are missing before it: its row may still be in use. While there are
        many requests, a worker gets the next one in advance, so that it need not wait between two.
        What a worker had no memory for is sent to another.
        """
        busy: dict[Connection, list[int]] = {}
        replies: dict[int, dict[str, Any]] = {}
        waiting, taken = deque(range(len(requests))), 0
        while taken < len(requests):
            limit = min(len(requests), taken + window) if window else len(requests)
            for depth in (1, 2):
                for pipe in self._workers:
                    ahead = depth == 1 or len(waiting) > 8 * len(self._workers)
                    if len(busy.get(pipe, ())) < depth and waiting and waiting[0] < limit and ahead:
                        self._send(pipe, requests[waiting[0]])
                        busy.setdefault(pipe, []).append(waiting.popleft())
            number = taken if window else next(iter(replies), -1)
            if number in replies:
                yield replies.pop(number)
                taken += 1
            else:
                replies |= self._hear(busy, requests, waiting)

    def _hear(
        self,
        busy: dict[Connection, list[int]],
        requests: Sequence[Mapping[str, Any]],
        waiting: deque[int],
    ) -> dict[int, dict[str, Any]]:
        """Wait for replies, by number of their request; a worker that has died ends the run."""
        sentinels = {process.sentinel: (process, pipe) for pipe, process in self._workers.items()}
        ready = wait([*busy, *sentinels])
        replies = {}
        for pipe in [p for p in ready if isinstance(p, Connection)]:
            number, *others = busy.pop(pipe)
            reply = self._receive(pipe, requests[number])
            if "full" in reply:
                self._let_go(pipe, f"{self._task(requests[number])} failed: {reply['full']}")
                waiting.extendleft(reversed((number, *others)))
                continue
            replies[number] = reply
            if others:
                busy[pipe] = others
        for sentinel in [s for s in ready if not isinstance(s, Connection)]:
            process, pipe = sentinels[sentinel]  # type: ignore[index]
            if not (pipe in busy and pipe.poll()):  # its last words are read first
                raise self._death(process, requests[busy[pipe][0]] if pipe in busy else None)
        return replies

    def _let_go(self, pipe: Connection, failure: str) -> None:
        """A worker that had no memory leaves what it held to the others on its device; the last of
        them may not go.
        """
        device = self._devices.pop(pipe)
        left = sum(other == device for other in self._devices.values())
        if not left:
            raise RunFailed(failure)
        warnings.warn(
            f"{device} has no memory for {left + 1} workers: going on with {left}", stacklevel=2
        )
        stop_workers([(pipe, self._workers.pop(pipe))])

    def _send(self, pipe: Connection, request: Mapping[str, Any]) -> None:
        try:
            pipe.send_bytes(json.dumps(request).encode())
        except OSError:
            raise self._death(self._workers[pipe], request) from None

    def _receive(self, pipe: Connection, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = json.loads(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise self._death(self._workers[pipe], request) from None
        if "mistake" in reply:
            raise UserError(reply["mistake"])
        if "error" in reply:
            print(reply["traceback"], file=sys.stderr)
            raise RunFailed(f"{self._task(request)} failed: {reply['error']}")
        return reply

    def _death(self, process: SpawnProcess, request: Mapping[str, Any] | None) -> RunFailed:
        """How a worker ended, and at what."""
        how, advice = cause_of_death(process)
        return RunFailed(f"a worker {how} while {self._task(request)}{advice}")

    def _task(self, request: Mapping[str, Any] | None) -> str:
        if request is None:
            return "idle"
        if "train" in request:
            return f"training client {self.names[request['train']['client']]}"
        return "evaluating"


# --------------------------------------------------------------------------------------- the worker


def serve_jobs(pipe: Connection, plan: WorkerPlan, place: WorkerPlace) -> None:
    """What a worker does: answer requests until the pipe closes."""
    belong_to_parent()
    torch.set_num_threads(1)
    allot_image_memory(place)
    try:
        worker = _JobWorker(replace(plan, training=replace(plan.training, device=place.device)))
        while True:
            request = json.loads(pipe.recv_bytes())
            pipe.send_bytes(json.dumps(_answer_job(worker, request)).encode())
    except (EOFError, OSError):
        pass  # the parent has closed the pipe


def _answer_job(worker: _JobWorker, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        with memory_shortage_told(worker.trainer):
            return (
                worker.train(request) if "train" in request else worker.predict(*request["predict"])
            )
    except UserError as mistake:
        return {"mistake": str(mistake)}
    except OutOfMemory as full:
        return {"full": str(full)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


class _JobWorker:
    def __init__(self, plan: WorkerPlan) -> None:
        self._arrays = {name: attach_shared(handle) for name, handle in plan.arrays.items()}
        rows, ends = map(attach_shared, plan.shards)
        shards = [rows[start:stop] for start, stop in pairwise(ends)]
        pictures = self._arrays["images"], self._arrays["targets"]
        examples = Examples(
            *pictures, plan.mean, plan.std, *map(self._arrays.get, ("groups", "patients"))
        )
        self.trainer = Trainer(
            plan.build, examples, shards, plan.training, plan.local, plan.loss, plan.asks
        )
        self.trainer.steps_taken = self._arrays["steps_taken"]
        layout = self.trainer.network.layout
        self._inbox = EngineInbox(layout, self._arrays)
        params, buffers, counters = (
            self._arrays[f"sent.{name}"][0] for name in ("params", "buffers", "counters")
        )
        self._sent = Model(params, buffers, counters, layout)
        self._broadcast: dict[str, NDArray[Any]] = {}

    def train(self, request: Mapping[str, Any]) -> dict[str, Any]:
        for name, handle in request["broadcast"].items():
            if name not in self._broadcast:
                self._broadcast[name] = attach_shared(
                    SharedHandle(**handle | {"shape": tuple(handle["shape"])})
                )
        broadcast = {
            name: self._broadcast[name] for name in request["broadcast"]
        }  # of this round only
        job = Job(**request["train"], model=self._sent, broadcast=broadcast)
        memory = {name: self._arrays[f"memory.{name}"][job.client] for name in request["memory"]}
        update, learnt = self.trainer.work(job, memory, into=self._inbox.model(request["row"]))
        for name, vector in update.extra.items():
            self._inbox.extra[name][request["row"]] = vector
        for name, vector in learnt.items():
            self._arrays[f"learnt.{name}"][job.client] = vector
        numbers = {name: getattr(update, name) for name in ("client", "size", "steps", "seconds")}
        labelled = None if update.labelled is None else update.labelled.tolist()
        return numbers | {
            "labelled": labelled,
            "learnt": list(learnt),
            "metrics": dict(update.metrics),
        }

    def predict(self, start: int, stop: int) -> dict[str, Any]:
        self.trainer.network.load(self._sent)
        rows = self._arrays["query"][start:stop]
        self._arrays["scores"][start:stop] = predict(
            self.trainer.network, self.trainer.examples, rows
        )
        return {}

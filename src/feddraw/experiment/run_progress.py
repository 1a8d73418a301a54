"""How much of a run is done, told at least once a second, also while one client trains for minutes.

Work is counted in images. A trained image counts three times as much as an evaluated one, because a
training step costs about three forward passes. Engines that count the optimiser steps under way
(`steps_taken`) are read as they work; for the others, and for evaluations, the work under way is
estimated from the pace so far.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from feddraw.engines import Engine
from feddraw.experiment.evaluation import has_personal_models
from feddraw.experiment.run_preparation import PreparedRun, PreparedTask
from feddraw.system.progress import Progress
from feddraw.training.loop import steps_in_round

TRAINED_COST = 3  # cost of a trained image, where an evaluated one costs 1
REPORT_INTERVAL = 1.0  # seconds between two reports
MOST_GUESSED_DONE = 0.95  # share of work that a guess may call done

Item = TypeVar("Item")


def images_to_evaluate(task: PreparedTask, *, final: bool) -> int:
    """Images that the models of a round are evaluated on, counted once per model."""
    images = len(task.dataset.rows["validation"])
    if final or task.experiment.test_every_round:
        images += len(task.dataset.rows["test"])
    models = len(task.clients) if has_personal_models(task.method) else 1
    return images * models


class RunProgress:
    """Follows one run: which round, which clients are back, how many of all images are done."""

    def __init__(
        self, prepared: PreparedRun, engine: Engine, start: int, progress: Progress | None
    ) -> None:
        self._prepared = prepared
        self._engine = engine
        self._progress = progress
        self._rounds = prepared.experiment.rounds
        by_round = [
            sum(self._training(round).values()) + self._evaluation(round)
            for round in range(self._rounds)
        ]
        self._before = list(accumulate(by_round, initial=0))
        self.total = self._before[-1]
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._first = self._before[start]
        self._begin(start)

    def _training(self, round: int) -> dict[int, int]:
        """What each client's work costs."""
        rows = self._prepared.training_rows
        training = self._prepared.training
        costs = {}
        for client, effort in self._prepared.efforts(round).items():
            steps = steps_in_round(len(rows[client]), training, effort)
            costs[client] = self._cost(client, steps)
        return costs

    def _cost(self, client: int, steps: int) -> int:
        """Of so many training steps of a client."""
        images = len(self._prepared.training_rows[client])
        batch = min(images, self._prepared.experiment.training.batch_size)
        return TRAINED_COST * steps * batch

    def _evaluation(self, round: int) -> int:
        return images_to_evaluate(self._prepared, final=round == self._rounds - 1)

    def _begin(self, round: int) -> None:
        self._round = round
        self._back: set[int] = set()  # clients whose updates are there
        self._costs = self._training(round) if round < self._rounds else {}
        self._evaluating_since: float | None = None
        self._steps: NDArray[np.int64] = getattr(self._engine, "steps_taken", np.zeros(0, np.int64))
        self._steps[:] = 0

    def came(self, client: int) -> None:
        """A client's update is there."""
        self._back.add(client)
        self._evaluating_since = time.monotonic() if len(self._back) == len(self._costs) else None
        self.tell()

    def finished(self, round: int) -> None:
        """A round is trained, evaluated and written."""
        self._begin(round + 1)
        self.tell()

    def tell(self) -> None:
        """Report how things stand."""
        if self._progress is not None and self._round < self._rounds:
            with self._lock:
                self._progress(self.now(), self.done(), self.total)

    def now(self) -> str:
        """What is under way, in words."""
        if self._evaluating_since is not None:
            return f"round {self._round}: evaluating"
        sampled = len(self._costs)
        return f"round {self._round}: {len(self._back)} of {sampled} client{'s' * (sampled > 1)}"

    def done(self) -> int:
        """How much of the run's work is done, as of `total`."""
        trained = self._before[self._round]
        for client, cost in self._costs.items():
            steps = int(self._steps[client]) if client < len(self._steps) else 0
            trained += cost if client in self._back else min(cost, self._cost(client, steps))
        return trained + self._evaluated(trained)

    def _evaluated(self, done: int) -> int:
        """Guessed from the pace of the training before it."""
        if self._evaluating_since is None:
            return 0
        training_seconds = self._evaluating_since - self._began
        pace = (done - self._first) / training_seconds if training_seconds > 0 else 0.0
        guessed = pace * (time.monotonic() - self._evaluating_since)
        return int(min(guessed, MOST_GUESSED_DONE * self._evaluation(self._round)))

    def over(self, items: Iterator[Item]) -> Iterator[Item]:
        """The items, with a report every second while the next one is awaited."""
        while True:
            with self._ticking():
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    @contextmanager
    def _ticking(self) -> Iterator[None]:
        if self._progress is None:
            yield
            return
        enough = threading.Event()
        trouble: list[BaseException] = []

        def tick() -> None:
            try:
                while not enough.wait(REPORT_INTERVAL):
                    self.tell()
            except BaseException as error:
                trouble.append(error)

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()
        if trouble:
            raise trouble[0]

"""The serial engine: every client in turn, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from feddraw.core import Job, Model, Update
from feddraw.engines import Engine, Rows, Scores
from feddraw.engines._memory import EngineWithMemory, Inbox
from feddraw.training.client import Trainer
from feddraw.training.loop import predict
from feddraw.training.reproducibility import one_thread


def serial(prepared: Any, workers: int) -> Engine:
    """Every client in turn, in this process."""
    return Serial(prepared.trainer)


class Serial(EngineWithMemory):
    """One network of this process trains all clients."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.trainer = trainer
        self.steps_taken = trainer.steps_taken
        self._inbox: Inbox | None = None

    def train(self, jobs: Sequence[Job], *, in_turn: bool = False) -> Iterator[Update]:
        inbox = self._inbox_for(1 if in_turn else len(jobs))
        self.steps_taken[:] = 0
        for number, job in enumerate(jobs):
            row = 0 if in_turn else number
            memory = self.memory.get(job.client, {})
            update, self._learnt[job.client] = self.trainer.work(job, memory, into=inbox.model(row))
            for name, vector in update.extra.items():
                inbox.extra[name][row] = vector
            yield replace(update, extra=inbox.extra_in_row(row))

    def _inbox_for(self, rows: int) -> Inbox:
        """The inbox of the last round, or another if that has not as many rows."""
        if self._inbox is None or len(self._inbox.params) != rows:
            layout = self.trainer.network.layout
            shapes = Inbox.shapes(layout, rows, self.trainer.sends)
            arrays = {name: np.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}
            self._inbox = Inbox(layout, arrays)
        return self._inbox

    def predict(self, model: Model, rows: Rows) -> Scores:
        trainer = self.trainer
        trainer.network.load(model)
        with one_thread():
            return predict(trainer.network, trainer.examples, rows, trainer.objective)

    def close(self) -> None:
        pass

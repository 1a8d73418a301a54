"""The serial engine: every client in turn, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from feddraw.core import Job, Model, Update
from feddraw.engines import Engine, Rows, Scores
from feddraw.engines._memory import EngineInbox, EngineWithMemory
from feddraw.training.client import Trainer
from feddraw.training.loop import predict
from feddraw.training.reproducibility import one_thread


def serial(prepared: Any, workers: int) -> Engine:
    """Every client in turn, in this process."""
    return Serial(prepared.trainer)


class Serial(EngineWithMemory):
    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.trainer = trainer
        self.steps_taken = trainer.steps_taken
        self._inbox: EngineInbox | None = None

    def train(self, jobs: Sequence[Job], *, in_turn: bool = False) -> Iterator[Update]:
        rows, layout = 1 if in_turn else len(jobs), self.trainer.network.layout
        if self._inbox is None or len(self._inbox.params) != rows:
            shapes = EngineInbox.shapes(layout, rows, self.trainer.sends)
            self._inbox = EngineInbox(
                layout, {name: np.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}
            )
        inbox = self._inbox
        self.steps_taken[:] = 0
        for number, job in enumerate(jobs):
            row = 0 if in_turn else number
            memory = self.memory.get(job.client, {})
            update, self._learnt[job.client] = self.trainer.work(job, memory, into=inbox.model(row))
            for name, vector in update.extra.items():
                inbox.extra[name][row] = vector
            yield replace(update, extra=inbox.extra_in_row(row))

    def predict(self, model: Model, rows: Rows) -> Scores:
        self.trainer.network.load(model)
        with one_thread():
            return predict(self.trainer.network, self.trainer.examples, rows)

    def close(self) -> None:
        pass

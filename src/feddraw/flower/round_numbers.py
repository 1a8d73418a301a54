"""Round numbers that go on after a restart: Flower's own loop begins at 1 every time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class Counting(Strategy):
    """Another strategy, whose rounds begin after those that are done."""

    def __init__(self, strategy: Strategy, done: int) -> None:
        self.strategy, self.done = strategy, done

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_train(self.done + server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self.strategy.aggregate_train(self.done + server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(self.done + server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(self.done + server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Flower's loop over the rounds that are left; the first evaluation is that of the last round done."""
        counted = None if evaluate_fn is None else self._counted(evaluate_fn)
        found = super().start(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, counted)
        parts = (found.train_metrics_clientapp, found.evaluate_metrics_clientapp, found.evaluate_metrics_serverapp)
        return Result(found.arrays, *({self.done + round: part[round] for round in part} for part in parts))

    def _counted(self, evaluate: Evaluate) -> Evaluate:
        return lambda server_round, arrays: evaluate(self.done + server_round, arrays)

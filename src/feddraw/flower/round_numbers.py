"""Round numbers that go on after a restart: Flower's own loop begins at 1 every time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Result, Strategy


class RenumberedStrategy(Strategy):
    """Another strategy, whose rounds begin after those that are done."""

    def __init__(self, strategy: Strategy, done: int) -> None:
        self.strategy, self.done = strategy, done

    def configure_train(self, server_round: int, *given: Any, **named: Any) -> Iterable[Message]:
        return self.strategy.configure_train(self.done + server_round, *given, **named)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self.strategy.aggregate_train(self.done + server_round, replies)

    def configure_evaluate(self, server_round: int, *given: Any, **named: Any) -> Iterable[Message]:
        return self.strategy.configure_evaluate(self.done + server_round, *given, **named)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(self.done + server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()

    def go_on(self, *arguments: Any) -> Result:
        """Flower's loop over the rounds that are left; the first evaluation is that of the last round done.

        The arguments are those of `start`, all of them, in its order.
        """
        *others, evaluate = arguments
        counted = evaluate and (lambda server_round, arrays: evaluate(self.done + server_round, arrays))
        given: tuple[Any, ...] = (*others, counted)
        found = self.start(*given)
        parts = (found.train_metrics_clientapp, found.evaluate_metrics_clientapp, found.evaluate_metrics_serverapp)
        return Result(found.arrays, *({self.done + round: part[round] for round in part} for part in parts))

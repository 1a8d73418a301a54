"""The loop over rounds, which is Flower's, and how its rounds are numbered on after a restart.

Flower's loop begins at round 1 every time. Here rounds are counted over all restarts: a server that
resumes after 7 rounds asks for round 8. So our own `start` leads Flower's loop through
`RenumberedStrategy`. A loop that another wrote, or a wrapper's own `start`, also begins at 1; the
strategy then adds the rounds that were done before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
Aggregated = tuple[ArrayRecord | None, MetricRecord | None]

DEFAULT_TIMEOUT = 3600.0  # seconds for the replies to a message, as in Flower


@dataclass(frozen=True, eq=False)
class Caller:
    """Who calls the strategy's hooks: our own `start`, or a loop that we do not know."""

    ours: bool = False
    through: Strategy | None = None  # a wrapper between our loop and the strategy
    timeout: float = DEFAULT_TIMEOUT


@dataclass(frozen=True, eq=False)
class FlowerLoop:
    """The arguments of `Strategy.start`: all that Flower's loop needs beside the strategy."""

    grid: Grid
    arrays: ArrayRecord  # the model to begin with
    rounds: int
    timeout: float
    train_config: ConfigRecord | None
    evaluate_config: ConfigRecord | None
    evaluate_fn: EvaluateFn | None

    def run(self, start: Callable[..., Result]) -> Result:
        """The rounds, numbered from 1, by this `start` of a strategy."""
        return start(
            self.grid,
            self.arrays,
            self.rounds,
            self.timeout,
            self.train_config,
            self.evaluate_config,
            self.evaluate_fn,
        )

    def run_after(self, done: int, strategy: Strategy) -> Result:
        """The rounds, numbered from `done + 1`; the model is evaluated first, as of round
        `done`.
        """
        loop = replace(self, evaluate_fn=self._evaluate_after(done))
        result = loop.run(RenumberedStrategy(strategy, done).start)
        return Result(
            arrays=result.arrays,
            train_metrics_clientapp=_numbered_on(result.train_metrics_clientapp, done),
            evaluate_metrics_clientapp=_numbered_on(result.evaluate_metrics_clientapp, done),
            evaluate_metrics_serverapp=_numbered_on(result.evaluate_metrics_serverapp, done),
        )

    def _evaluate_after(self, done: int) -> EvaluateFn | None:
        evaluate = self.evaluate_fn
        if evaluate is None:
            return None
        return lambda server_round, arrays: evaluate(done + server_round, arrays)


def _numbered_on(metrics: dict[int, MetricRecord], done: int) -> dict[int, MetricRecord]:
    return {done + server_round: record for server_round, record in metrics.items()}


class RenumberedStrategy(Strategy):
    """Another strategy, whose rounds are numbered on after those that are done."""

    def __init__(self, strategy: Strategy, done: int) -> None:
        self.strategy = strategy
        self.done = done

    def configure_train(self, server_round: int, *given: Any, **named: Any) -> Iterable[Message]:
        return self.strategy.configure_train(self.done + server_round, *given, **named)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregated:
        return self.strategy.aggregate_train(self.done + server_round, replies)

    def configure_evaluate(self, server_round: int, *given: Any, **named: Any) -> Iterable[Message]:
        return self.strategy.configure_evaluate(self.done + server_round, *given, **named)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(self.done + server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()

"""FedDRAW and its rivals: who counts how much when hospitals train one chest-radiograph model
together.

    import feddraw
    feddraw.weights(round=4, rounds=15, sizes=[20000, 5000, 5000, 5000],
                    similarities=[.91, .99, .99, .98])
    result = feddraw.run(feddraw.Experiment(scenario="CHM-2", method="feddraw"))
    print(result.metrics.test.auc.macro, result.last.weights)
    for round in feddraw.iterate(feddraw.Experiment(scenario="CHM-2", method="feddraw")):
        print(round.round, round.metrics.validation.auc.macro, round.weights)  # each as it is done

Research software, not a medical device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feddraw.aggregation import (
        AggregationResult,
        AggregationState,
        ClientUpdate,
        NoUpdateUsed,
        aggregate,
    )
    from feddraw.core.schedules import schedule, weights
    from feddraw.errors import RunFailed, UserError
    from feddraw.experiment.running import RunResult, iterate, run
    from feddraw.experiment.settings import Experiment
    from feddraw.results.metrics import RunMetrics
    from feddraw.results.round_log import EvaluatedRound
    from feddraw.server.ledger import LedgerEntry
    from feddraw.training.settings import Training

__version__ = "0.1.0"
__all__ = [
    "AggregationResult",
    "AggregationState",
    "ClientUpdate",
    "EvaluatedRound",
    "Experiment",
    "LedgerEntry",
    "NoUpdateUsed",
]
__all__ += [
    "RunFailed",
    "RunMetrics",
    "RunResult",
    "Training",
    "UserError",
    "aggregate",
    "iterate",
    "run",
    "schedule",
    "weights",
]

_LATER = dict.fromkeys(["RunResult", "iterate", "run"], "experiment.running")
_LATER |= dict.fromkeys(
    ["AggregationResult", "AggregationState", "ClientUpdate", "NoUpdateUsed", "aggregate"],
    "aggregation",
)
_LATER |= {"Experiment": "experiment.settings", "Training": "training.settings"}
_LATER |= {"LedgerEntry": "server.ledger"}
_LATER |= {"EvaluatedRound": "results.round_log", "RunMetrics": "results.metrics"}
_LATER |= {
    "RunFailed": "errors",
    "UserError": "errors",
    "schedule": "core.schedules",
    "weights": "core.schedules",
}


def __getattr__(name: str) -> Any:
    """What needs torch or numpy is imported when it is first asked for, so that commands start at
    once.
    """
    if name not in _LATER:
        raise AttributeError(f"module 'feddraw' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"feddraw.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    """What there is, also before it is imported."""
    return sorted([*__all__, "__version__"])

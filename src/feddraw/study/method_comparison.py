"""FedDRAW, FedAvg, uniform averaging and each client alone on somebody's own experiment, over seeds
or folds.

A comparison is a study whose runs are in order of priority: seed by seed, so that what is done can
be compared, and within a seed by method. With a budget of time, a seed begins only if all of its
methods fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from feddraw.errors import UserError
from feddraw.experiment.run_time_estimate import RunTimeEstimate, estimate_run_times
from feddraw.experiment.settings import Experiment
from feddraw.study.plan import PlannedRun, method_of, planned_run
from feddraw.study.progress import StudyProgress
from feddraw.text import grouped
from feddraw.training.devices import WorkerPlace

COMPARED_METHODS = ("feddraw", "fedavg", "uniform", "alone")
COMPARED_SEEDS = 5
FOR_THE_REPORT = 0.03  # share of a budget that is kept for writing the report


def comparison_runs(experiment: Experiment, *, seeds: int = 0, folds: int = 0) -> list[PlannedRun]:
    """All runs, the most important first; a method of the experiment's own comes before the
    others.
    """
    if folds:
        experiment = experiment.with_settings({"folds": folds})
    repeats = seeds or experiment.folds or COMPARED_SEEDS
    if min(seeds, folds) < 0:
        raise UserError("the number of seeds or folds must be positive")
    if experiment.folds and seeds > experiment.folds:
        raise UserError(
            f"{seeds} seeds for {experiment.folds} folds: give at most one seed per fold"
        )
    own = experiment.section("method")[0]
    methods = COMPARED_METHODS if own in COMPARED_METHODS else (own, *COMPARED_METHODS)
    found = []
    for seed, method in product(range(experiment.seed, experiment.seed + repeats), methods):
        changes = {"seed": seed} | ({} if method == own else {"method": method})
        found.append(planned_run(experiment.with_settings(changes), {"method": method}))
    return found


def comparison_estimates(
    runs: Sequence[PlannedRun], places: Sequence[WorkerPlace]
) -> dict[str, RunTimeEstimate]:
    """By method, from a few timed steps."""
    methods = grouped((method_of(planned), planned.experiment) for planned in runs)
    times = estimate_run_times([experiments[0] for experiments in methods.values()], places)
    return dict(zip(methods, times, strict=True))


@dataclass
class ComparisonBudget:
    """Decides before each run whether it still fits, at the pace of the runs so far."""

    seconds: float  # of the whole command
    runs: Sequence[PlannedRun]  # that are not finished yet, the most important first
    expected: Mapping[str, float]  # seconds by run
    workers: int
    clock: Callable[[], float]  # seconds since the command was typed

    def __post_init__(self) -> None:
        self.limit = self.seconds * (1 - FOR_THE_REPORT)
        self._begun: set[int] = set()
        self._refused: set[int] = set()

    def chosen(self) -> list[PlannedRun]:
        """What fits as far as one can tell beforehand."""
        tally = StudyProgress([], self.workers, self.expected)
        found: list[PlannedRun] = []
        for seed in dict.fromkeys(planned.experiment.seed for planned in self.runs):
            group = self._of(seed)
            if self._fits(tally, [*found, *group]):
                found += group
                continue
            if not found:  # not even one seed: the first methods of it
                for planned in group:
                    found += [planned] if self._fits(tally, [*found, planned]) else []
            break
        return found

    def admits(self, planned: PlannedRun, tally: StudyProgress) -> bool:
        """Whether a run may begin now; the rest of a seed that has begun is asked for one
        by one.
        """
        seed = planned.experiment.seed
        if seed in self._refused:
            return False
        first = seed == self.runs[0].experiment.seed
        group = [planned] if seed in self._begun or first else self._of(seed)
        if self._fits(tally, group):
            self._begun.add(seed)
            return True
        if seed not in self._begun and not first:
            self._refused.add(seed)
        return False

    def _fits(self, tally: StudyProgress, also: Sequence[PlannedRun]) -> bool:
        left = tally.seconds_left([planned.name for planned in also])
        return left is not None and self.clock() + left <= self.limit

    def _of(self, seed: int) -> list[PlannedRun]:
        return [planned for planned in self.runs if planned.experiment.seed == seed]


def comparison_seeds_in_words(runs: Sequence[PlannedRun]) -> str:
    """Runs in few words: whole seeds together, else method by method."""
    methods = grouped((planned.experiment.seed, method_of(planned)) for planned in runs)
    seeds = grouped((", ".join(names), str(seed)) for seed, names in methods.items())
    return "; ".join(
        f"{names} with seed{'s' * (len(own) > 1)} {', '.join(own)}" for names, own in seeds.items()
    )

"""FedDRAW, FedAvg, uniform averaging and each client alone on somebody's own experiment, over seeds
or folds.

A comparison is a study whose runs are in order of priority: seed by seed, so that what is done can
be compared, and within a seed by method. With a budget of time, a seed begins only if all of its
methods fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from feddraw.core import why_not_recombined
from feddraw.data.datasets.phantom import SMALLEST_PHANTOM
from feddraw.errors import UserError
from feddraw.experiment.method_by_name import combined_method
from feddraw.experiment.settings import Experiment
from feddraw.study.cost import RunEstimate
from feddraw.study.plan import PlannedRun, method_of, planned_run
from feddraw.study.progress import StudyProgress
from feddraw.study.timing_on_own_data import estimate_runs
from feddraw.system.time_left import seconds_until_all_done
from feddraw.text import grouped
from feddraw.training.devices import WorkerPlace

COMPARED_METHODS = ("feddraw", "fedavg", "uniform", "alone")
COMPARED_SEEDS = 5
FOR_THE_REPORT = 0.03  # share of a budget that is kept for writing the report
SMALLEST_IMAGE = SMALLEST_PHANTOM  # pixels across that may be advised: all our data sets take it


def comparison_runs(experiment: Experiment, *, seeds: int = 0, folds: int = 0) -> list[PlannedRun]:
    """All runs, the most important first; a method of the experiment's own comes before the
    others.
    """
    if folds:
        experiment = experiment.with_settings({"folds": folds})
    repeats = seeds or experiment.folds or COMPARED_SEEDS
    if min(seeds, folds) < 0:
        raise UserError("the number of seeds or folds must be positive")
    if experiment.folds == 1:
        raise UserError("folds must be 0 (the data's own split) or at least 2, not 1")
    if experiment.folds and seeds > experiment.folds:
        raise UserError(
            f"{seeds} seeds for {experiment.folds} folds: give at most one seed per fold"
        )
    first = experiment.section("method")[0]
    methods = COMPARED_METHODS if first in COMPARED_METHODS else (first, *COMPARED_METHODS)
    runs = []
    for seed, method in product(range(experiment.seed, experiment.seed + repeats), methods):
        changes: dict[str, Any] = {"seed": seed}
        if method != first:  # the experiment's own keeps its settings
            changes["method"] = method
            if why_not_recombined(combined_method(method, {})):
                changes["keep.updates"] = False
        runs.append(planned_run(experiment.with_settings(changes), {"method": method}))
    return runs


def comparison_estimates(
    runs: Sequence[PlannedRun], places: Sequence[WorkerPlace]
) -> dict[str, RunEstimate]:
    """By method, from a few timed steps."""
    firsts: dict[str, Experiment] = {}
    for planned in runs:
        firsts.setdefault(method_of(planned), planned.experiment)
    return dict(zip(firsts, estimate_runs(list(firsts.values()), places), strict=True))


@dataclass
class ComparisonBudget:
    """Decides before each seed whether all of it still fits, at the pace of the runs so far."""

    seconds: float  # of the whole command
    runs: Sequence[PlannedRun]  # that are not finished yet, the most important first
    expected: Mapping[str, float]  # seconds by run
    workers: int
    clock: Callable[[], float]  # seconds since the command was typed

    def __post_init__(self) -> None:
        self.limit = self.seconds * (1 - FOR_THE_REPORT)
        self._begins: dict[int, bool] = {}  # by seed: decided when its first run is to begin

    def chosen(self) -> list[PlannedRun]:
        """The seeds that fit as a whole, as far as one can tell beforehand."""
        progress = StudyProgress([], self.workers, self.expected)
        chosen: list[PlannedRun] = []
        for seed in dict.fromkeys(planned.experiment.seed for planned in self.runs):
            runs = self._with_seed(seed)
            if not self._fits(progress, chosen + runs):
                break
            chosen += runs
        return chosen

    def next_seed(self) -> list[PlannedRun]:
        """What is left of the first seed that is not finished."""
        return self._with_seed(self.runs[0].experiment.seed)

    def admits(self, planned: PlannedRun, progress: StudyProgress) -> bool:
        """Whether a run may begin now: those of a seed only if, when the first of them was to
        begin, all of them fitted at the pace of the runs so far.

        A seed that has begun is finished, also where it takes longer than was expected: without its
        last method nothing of it could be compared.
        """
        seed = planned.experiment.seed
        if seed not in self._begins:
            refused_before = not all(self._begins.values())
            fits = self._fits(progress, self._with_seed(seed))
            self._begins[seed] = fits and not refused_before
        return self._begins[seed]

    def _fits(self, progress: StudyProgress, others: Sequence[PlannedRun]) -> bool:
        """Whether these would be done within the budget, beside those under way."""
        left = progress.seconds_left([planned.name for planned in others])
        return left is not None and self.clock() + left <= self.limit

    def _with_seed(self, seed: int) -> list[PlannedRun]:
        return [planned for planned in self.runs if planned.experiment.seed == seed]


def what_would_fit(budget: ComparisonBudget, estimates: Mapping[str, RunEstimate]) -> list[str]:
    """What to change so that one seed of all methods fits, each as an option of the command."""
    runs = budget.next_seed()
    here = [estimates[planned.name] for planned in runs]
    left = budget.limit - budget.clock()

    def fits(each: Sequence[float]) -> bool:
        return seconds_until_all_done([], each, budget.workers) <= left

    seconds = seconds_until_all_done([], [run.seconds for run in here], budget.workers)
    whole = (budget.clock() + seconds) / (1 - FOR_THE_REPORT)
    options = [f"--minutes {math.ceil(whole / 60)}"]
    for rounds in range(here[0].rounds - 1, 0, -1):
        if fits([run.seconds_with(rounds) for run in here]):
            options.append(f"--set rounds={rounds} (of {here[0].rounds})")
            break
    size = runs[0].completed.section("data")[1].get("size")
    if isinstance(size, int):
        smaller = size // 2
        while smaller >= SMALLEST_IMAGE:
            if fits([run.seconds_at(smaller / size) for run in here]):
                options.append(f"--set data.size={smaller} (of {size})")
                break
            smaller //= 2
    return options


def comparison_seeds_in_words(runs: Sequence[PlannedRun]) -> str:
    """Runs in few words: whole seeds together, else method by method."""
    methods_by_seed = grouped((planned.experiment.seed, method_of(planned)) for planned in runs)
    seeds_by_methods = grouped(
        (", ".join(methods), str(seed)) for seed, methods in methods_by_seed.items()
    )
    return "; ".join(
        f"{methods} with seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
        for methods, seeds in seeds_by_methods.items()
    )

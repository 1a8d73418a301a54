"""What each site contributed to one run or to several with other seeds: by recombining updates, and
where it is asked for by retraining.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from feddraw.errors import UserError
from feddraw.experiment.recombination import (
    ContributionOptions,
    recombined_contributions,
)
from feddraw.experiment.retraining import (
    TrainingBudget,
    other_seed,
    retrained_contributions,
    seconds_of,
    without_each_site,
)
from feddraw.results.contribution_file import (
    RunContributions,
    read_contributions,
    write_contributions,
)
from feddraw.results.outcome_settings import NOT_COMPARED, REPEATS, dotted_settings
from feddraw.results.recorded_run import RecordedRun, finished_run
from feddraw.system.progress import Progress, no_progress

RECOMBINED = ("rounds", "shapley")
RETRAINED = "retrained"


@dataclass(frozen=True)
class Effort:
    """How much is trained for it."""

    retrain: bool = False
    seeds: int = 1  # trainings of all sites; those beyond the given runs are carried out here
    minutes: float = 0.0  # within which trainings begin; 0: no limit

    def check(self, runs: int) -> None:
        if self.seeds < 1 or self.minutes < 0:
            raise UserError("--seeds must be at least 1 and --minutes zero or more")
        if self.seeds > 1 and runs > 1:
            raise UserError("give one run with --seeds, or several runs without it")


@dataclass(frozen=True, eq=False)
class MeasuredContributions:
    """By estimator, one entry per training; and what could not be had, in words."""

    by_estimator: dict[str, list[RunContributions]]
    notes: list[str] = field(default_factory=list)


def measure_contributions(
    paths: Sequence[Path],
    how: ContributionOptions,
    effort: Effort,
    *,
    trust: bool = False,
    progress: Progress = no_progress,
) -> MeasuredContributions:
    """What is there already is read, and everything is written down as soon as it is computed."""
    began = time.monotonic()
    how.check()
    effort.check(len(paths))
    runs = [finished_run(path) for path in paths]
    check_same_settings(runs)
    budget = TrainingBudget(
        seconds=60 * effort.minutes or float("inf"),
        clock=lambda: time.monotonic() - began,
        each=max(map(seconds_of, runs)),
    )
    measured = MeasuredContributions({})
    for run in runs:
        _measure_run(run, how, effort, measured, budget, trust=trust, progress=progress)
    first = runs[0]
    seed = int(first.settings["seed"])
    for number in range(seed + 1, seed + effort.seeds):
        whole = other_seed(first, number, trust=trust)
        if budget.carry_out([whole], progress):
            run = finished_run(whole.folder)
            _measure_run(run, how, effort, measured, budget, trust=trust, progress=progress)
    if budget.left_out:
        measured.notes.append(
            f"{budget.left_out} trainings did not fit into {effort.minutes:g} min: type the command"
            " again to continue"
        )
    if not measured.by_estimator:
        raise UserError("; ".join(measured.notes))
    return measured


def check_same_settings(runs: Sequence[RecordedRun]) -> None:
    """Refuse to average over runs that differ in more than their seeds."""
    first, *others = (_compared_settings(run) for run in runs)
    for run, other in zip(runs[1:], others, strict=True):
        for name in sorted(first.keys() | other.keys()):
            if first.get(name) != other.get(name):
                raise UserError(
                    f"{run.path} differs from {runs[0].path} in {name}: give runs of one"
                    " experiment with different seeds"
                )


def _compared_settings(run: RecordedRun) -> dict[str, object]:
    skipped = (*NOT_COMPARED, *REPEATS)
    settings = {name: value for name, value in run.settings.items() if name != "partition"}
    return {name: v for name, v in dotted_settings(settings).items() if name not in skipped}


def _measure_run(
    run: RecordedRun,
    how: ContributionOptions,
    effort: Effort,
    measured: MeasuredContributions,
    budget: TrainingBudget,
    *,
    trust: bool,
    progress: Progress,
) -> None:
    """One training: its updates recombined where it kept them, and the sites' absence."""

    def recombine() -> list[RunContributions]:
        return recombined_contributions(run.path, how, trust=trust, progress=progress)

    try:
        _add(measured, _kept_or_computed(run, how, RECOMBINED, recombine))
    except UserError as error:
        if not effort.retrain:
            raise
        if str(error) not in measured.notes:
            measured.notes.append(str(error))
    if not effort.retrain:
        return
    trainings = without_each_site(run, trust=trust)
    if budget.carry_out(trainings, progress):

        def retrain() -> list[RunContributions]:
            return [retrained_contributions(run, trainings, how)]

        _add(measured, _kept_or_computed(run, how, (RETRAINED,), retrain))


def _add(measured: MeasuredContributions, contributions: Sequence[RunContributions]) -> None:
    for each in contributions:
        measured.by_estimator.setdefault(each.estimator, []).append(each)


def _kept_or_computed(
    run: RecordedRun,
    how: ContributionOptions,
    estimators: Sequence[str],
    compute: Callable[[], list[RunContributions]],
) -> list[RunContributions]:
    kept = [read_contributions(run.path, name, how.metric, how.finding) for name in estimators]
    fitting = [
        each for each in kept if each is not None and each.values.shape[-1] == 1 + how.replicates
    ]
    if len(fitting) == len(estimators):
        return fitting
    computed = compute()
    for each in computed:
        write_contributions(run.path, each)
    return computed

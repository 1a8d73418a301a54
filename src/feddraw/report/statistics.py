"""The statistics of a report: means over repeats, ranks over scenarios, differences over patients
and trainings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from feddraw.analysis.bootstrap import Interval
from feddraw.analysis.metrics import macro
from feddraw.analysis.paired_differences import Difference
from feddraw.analysis.paired_repeats import Pairing, paired_repeats
from feddraw.analysis.statistics import Comparison, Table, compare, method_in_focus, to_digits
from feddraw.report.patients import PatientBootstrap, bootstrap_methods
from feddraw.report.runs import RecordedRun, RunCollection
from feddraw.report.settings import ReportSettings
from feddraw.report.trainings import TrainingDifferences, differences_over_trainings
from feddraw.system.progress import Progress, no_progress
from feddraw.tasks import Task, runs_of_one_task, task_of_runs

RANKED_DIGITS = 4  # of every metric in a table; means that are printed alike share a rank


@dataclass(frozen=True)
class MeanOverRepeats:
    """A mean over repeats (seeds, folds)."""

    value: float
    spread: float  # the sample's standard deviation (ddof 1); NaN for one repeat
    count: int  # repeats with a value: those in the mean
    runs: int  # repeats that were run
    uncounted: int = 0  # repeats with a value that is not in the mean, because others lack theirs

    @staticmethod
    def of(values: Sequence[float], uncounted: int = 0) -> MeanOverRepeats:
        defined = [value for value in values if math.isfinite(value)]
        return MeanOverRepeats(
            value=float(np.mean(defined)) if defined else math.nan,
            spread=float(np.std(defined, ddof=1)) if len(defined) > 1 else math.nan,
            count=len(defined),
            runs=len(values) + uncounted,
            uncounted=uncounted,
        )


def mean_over_repeats(runs: Sequence[RecordedRun], metric: str) -> MeanOverRepeats:
    """A macro test metric."""
    return MeanOverRepeats.of([run.test(metric) for run in runs])


@dataclass(frozen=True, eq=False)
class MethodRanking:
    """The comparison over scenarios, or why there is none; and what had to be left out of it."""

    comparison: Comparison | None
    reason: str
    left_out: tuple[str, ...]
    paired: tuple[int, ...] = ()  # seeds that all methods have, by scenario of the comparison


def rank_methods(collection: RunCollection, metric: str, alpha: float) -> MethodRanking:
    """Means over the repeats that all methods have, ranked in every scenario where that is
    possible.
    """
    pairings = {
        scenario: pair_runs(collection.of(scenario), metric) for scenario in collection.scenarios
    }
    methods = []
    left_out = []
    for method in collection.methods:
        scenarios = sum(method in pairing.methods for pairing in pairings.values())
        if scenarios > len(pairings) / 2:
            methods.append(method)
        else:
            left_out.append(f"{method}: it has results in at most half of the scenarios")
    means = {}
    for scenario, pairing in pairings.items():
        if pairing.repeats and set(methods) <= set(pairing.methods):
            paired = [run for run in collection.of(scenario) if run.repeat in pairing.repeats]
            means[scenario] = [
                mean_over_repeats([run for run in paired if run.method == method], metric).value
                for method in methods
            ]
        else:
            left_out.append(f"{scenario}: no seed in which all methods have a result")
    if len(means) < 2 or len(methods) < 2:
        count = (
            f"{len(methods)} method{'s' * (len(methods) != 1)} in {len(means)}"
            f" scenario{'s' * (len(means) != 1)}"
        )
        reason = f"Ranks need two methods and two scenarios; there are {count}."
        return MethodRanking(None, reason, tuple(left_out))
    table = Table(tuple(means), tuple(methods), np.array(list(means.values())))
    comparison = compare(to_digits(table, RANKED_DIGITS), alpha=alpha)
    counts = tuple(len(pairings[scenario].repeats) for scenario in means)
    return MethodRanking(comparison, "", tuple(left_out), counts)


def pair_runs(runs: Sequence[RecordedRun], metric: str, finding: str = "") -> Pairing:
    """Which repeats of one scenario count for a test metric.

    A reference that was trained with fewer seeds takes none from the methods.
    """
    return paired_repeats(
        (run.method, run.repeat)
        for run in runs
        if not run.reference and math.isfinite(run.test(metric, finding))
    )


@dataclass(frozen=True, eq=False)
class Report:
    """All that is needed to write about a collection of runs; what every section is made from."""

    collection: RunCollection
    rankings: Mapping[str, MethodRanking]  # by metric
    draws: Mapping[str, PatientBootstrap]  # by scenario
    command: str
    folders: Sequence[Path] = ()  # where the runs were found
    settings: ReportSettings = field(default_factory=ReportSettings)
    # By scenario, metric and finding: those that were asked for, as every table asks again.
    _pairings: dict[tuple[str, str, str], Pairing] = field(
        default_factory=dict, init=False, repr=False
    )

    @cached_property
    def task(self) -> Task:
        """What the models of all runs say."""
        return task_of_runs(self.collection.runs)

    @property
    def metrics(self) -> dict[str, str]:
        """The metrics that are compared, with their labels; the first one leads."""
        return self.task.labels

    @property
    def scenarios(self) -> list[str]:
        return self.collection.scenarios

    @property
    def methods(self) -> list[str]:
        """Those that are compared, without references."""
        return self.collection.methods

    @property
    def shown(self) -> list[str]:
        """Methods, then references: the order of every table and the look of every line."""
        return self.collection.methods + self.collection.references

    @property
    def focus(self) -> str:
        """The method that others are compared with: FedDRAW, or else the first."""
        return method_in_focus(self.collection.methods or self.collection.references)

    def runs(self, scenario: str, method: str = "") -> list[RecordedRun]:
        """The finished runs of a scenario: all, or those of one method."""
        return self.collection.of(scenario, method)

    def pairing(self, scenario: str, metric: str, finding: str = "") -> Pairing:
        """Which seeds count; where there are references only, all do."""
        key = (scenario, metric, finding)
        if key not in self._pairings:
            self._pairings[key] = pair_runs(self.runs(scenario), metric, finding)
        return self._pairings[key]

    def paired_runs(
        self, scenario: str, method: str = "", metric: str = "auc", finding: str = ""
    ) -> list[RecordedRun]:
        """The runs that are compared, of one method or of all: those of the seeds that all methods
        have.
        """
        pairing = self.pairing(scenario, metric, finding)
        runs = self.runs(scenario, method)
        return [run for run in runs if run.repeat in pairing.repeats or not pairing.methods]

    def mean(self, scenario: str, method: str, metric: str, finding: str = "") -> MeanOverRepeats:
        """Over the seeds that all methods have."""
        return self._mean(scenario, method, metric, finding, lambda run: run.test(metric, finding))

    def mean_over_findings(
        self, scenario: str, method: str, metric: str, findings: Sequence[str]
    ) -> MeanOverRepeats:
        """The same of the mean over some of the findings, of those that have a value."""

        def value(run: RecordedRun) -> float:
            return macro([run.test(metric, finding) for finding in findings])

        return self._mean(scenario, method, metric, "", value)

    def _mean(
        self,
        scenario: str,
        method: str,
        metric: str,
        finding: str,
        value: Callable[[RecordedRun], float],
    ) -> MeanOverRepeats:
        counted = self.paired_runs(scenario, method, metric, finding)
        others = [run for run in self.runs(scenario, method) if run not in counted]
        uncounted = [run for run in others if math.isfinite(value(run))]
        undefined = [math.nan] * (len(others) - len(uncounted))
        return MeanOverRepeats.of([*map(value, counted), *undefined], len(uncounted))

    def shown_in(self, scenario: str) -> list[str]:
        """Methods and references that have a run in a scenario."""
        return [method for method in self.shown if self.runs(scenario, method)]

    def replicates_in(self, scenario: str) -> int:
        """Of the bootstrap; none where methods could not be compared on the same patients."""
        return 0 if self.draws[scenario].why_none else self.settings.replicates

    @cached_property
    def trainings(self) -> dict[str, TrainingDifferences]:
        """By metric: the method in focus minus each other, over repeats that all methods have."""
        return {metric: self.trainings_against(self.focus, metric) for metric in self.metrics}

    def trainings_against(self, first: str, metric: str) -> TrainingDifferences:
        """This method minus each other, over repeats that all methods have."""
        paired = [
            run for scenario in self.scenarios for run in self.paired_runs(scenario, metric=metric)
        ]
        return differences_over_trainings(paired, metric, first)

    def over_patients(self, scenario: str, metric: str, first: str, second: str) -> Interval | None:
        """The first method minus the second over patients, where both kept scores of every seed
        that counts.
        """
        draws = self.draws[scenario]
        same_seeds = set(draws.repeats) == set(self.pairing(scenario, metric).repeats)
        if first == second or not {first, second} <= draws.by_metric[metric].by_method.keys():
            return None
        return draws.difference(metric, first, second) if same_seeds else None

    def over_repeats(self, scenario: str, metric: str, other: str) -> Difference | None:
        """The method in focus minus another over repeats, where there is more than one."""
        difference = self.trainings[metric].differences.get((scenario, other))
        return difference if difference is not None and difference.repeats > 1 else None


def compute_report(
    collection: RunCollection,
    *,
    settings: ReportSettings,
    command: str,
    progress: Progress = no_progress,
    folders: Sequence[Path] = (),
) -> Report:
    """Do the statistics."""
    collection = runs_of_one_task(collection)
    metrics = task_of_runs(collection.runs).metrics
    rankings = {metric: rank_methods(collection, metric, settings.alpha) for metric in metrics}
    draws = {}
    for scenario in collection.scenarios:
        counted = _runs_to_bootstrap(collection.of(scenario))
        on_drawn = partial(progress, f"resampling the test patients of {scenario}")
        draws[scenario] = bootstrap_methods(counted, settings.replicates, on_drawn)
    return Report(
        collection=collection,
        rankings=rankings,
        draws=draws,
        command=command,
        folders=folders,
        settings=settings,
    )


def _runs_to_bootstrap(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Those of the seeds that count; all where there are references only."""
    pairing = pair_runs(runs, "auc")
    if not pairing.methods:
        return list(runs)
    return [
        run
        for run in runs
        if run.repeat in pairing.repeats and (run.reference or run.method in pairing.methods)
    ]

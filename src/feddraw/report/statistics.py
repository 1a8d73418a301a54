"""The statistics of a report: means over repeats, ranks over scenarios, differences over patients
and trainings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from feddraw.analysis.metrics import macro
from feddraw.analysis.paired_differences import Difference
from feddraw.analysis.statistics import Comparison, Table, compare, to_digits
from feddraw.report.patients import PatientBootstrap, bootstrap_methods
from feddraw.report.runs import METRICS, RecordedRun, RunCollection
from feddraw.report.trainings import TrainingDifferences, differences_over_trainings

Say = Callable[[str], None]  # is told what is being done
RANKED_DIGITS = 4  # of every metric in a table; means that are printed alike share a rank


@dataclass(frozen=True)
class MeanOverRepeats:
    """A mean over repeats (seeds, folds) of those that have a value."""

    value: float
    spread: float  # the sample's standard deviation (ddof 1); NaN for one repeat
    count: int  # repeats with a value
    runs: int

    @staticmethod
    def of(values: Sequence[float]) -> MeanOverRepeats:
        defined = [value for value in values if math.isfinite(value)]
        return MeanOverRepeats(
            value=float(np.mean(defined)) if defined else math.nan,
            spread=float(np.std(defined, ddof=1)) if len(defined) > 1 else math.nan,
            count=len(defined),
            runs=len(values),
        )


def mean_over_repeats(
    runs: Sequence[RecordedRun], metric: str, finding: str = ""
) -> MeanOverRepeats:
    """A test metric: macro, or of one finding."""
    return MeanOverRepeats.of([run.test(metric, finding) for run in runs])


def mean_over_findings(
    runs: Sequence[RecordedRun], metric: str, findings: Sequence[str]
) -> MeanOverRepeats:
    """A test metric as the mean over some of the findings, of those that have a value."""
    return MeanOverRepeats.of(
        [macro([run.test(metric, finding) for finding in findings]) for run in runs]
    )


@dataclass(frozen=True, eq=False)
class MethodRanking:
    """The comparison over scenarios, or why there is none; and what had to be left out of it."""

    comparison: Comparison | None
    reason: str
    left_out: tuple[str, ...]


def rank_methods(collection: RunCollection, metric: str, alpha: float) -> MethodRanking:
    """Means over the repeats that all methods have, ranked in every scenario where that is
    possible.
    """
    values = {
        (run.scenario, run.method, run.repeat): run.test(metric)
        for run in collection.runs
        if not run.reference and math.isfinite(run.test(metric))
    }
    with_results = {(scenario, method) for scenario, method, _ in values}
    methods = []
    left_out = []
    for method in collection.methods:
        scenarios = sum((scenario, method) in with_results for scenario in collection.scenarios)
        if scenarios > len(collection.scenarios) / 2:
            methods.append(method)
        else:
            left_out.append(f"{method}: it has results in at most half of the scenarios")
    means = {}
    for scenario in collection.scenarios:
        repeats = _common_repeats(values, scenario, methods)
        if repeats:
            means[scenario] = [
                float(np.mean([values[scenario, method, repeat] for repeat in repeats]))
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
    return MethodRanking(comparison, "", tuple(left_out))


def _common_repeats(
    values: Mapping[tuple[str, str, str], float], scenario: str, methods: Sequence[str]
) -> set[str]:
    """The repeats of a scenario in which all methods have a value."""
    by_method = []
    for method in methods:
        by_method.append({repeat for s, m, repeat in values if (s, m) == (scenario, method)})
    return set.intersection(*by_method) if by_method else set()


@dataclass(frozen=True, eq=False)
class Report:
    """All that is needed to write about a collection of runs; what every section is made from."""

    collection: RunCollection
    rankings: Mapping[str, MethodRanking]  # by metric
    draws: Mapping[str, PatientBootstrap]  # by scenario
    command: str
    margin: float = 0.0  # how far below another method still counts as no worse; 0: no such test
    folders: Sequence[Path] = ()  # where the runs were found
    replicates: int = 0  # of the bootstrap

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
        methods = self.collection.methods or self.collection.references
        return next((method for method in methods if method.split(" ")[0] == "feddraw"), methods[0])

    def runs(self, scenario: str, method: str = "") -> list[RecordedRun]:
        """The runs of a scenario: all, or those of one method."""
        return self.collection.of(scenario, method)

    def mean(self, scenario: str, method: str, metric: str, finding: str = "") -> MeanOverRepeats:
        return mean_over_repeats(self.runs(scenario, method), metric, finding)

    def shown_in(self, scenario: str) -> list[str]:
        """Methods and references that have a run in a scenario."""
        return [method for method in self.shown if self.runs(scenario, method)]

    def replicates_in(self, scenario: str) -> int:
        """Of the bootstrap; none where methods could not be compared on the same patients."""
        return 0 if self.draws[scenario].why_none else self.replicates

    @cached_property
    def trainings(self) -> dict[str, TrainingDifferences]:
        """By metric: the method in focus minus each other, over repeats."""
        return {
            metric: differences_over_trainings(self.collection.runs, metric, self.focus)
            for metric in METRICS
        }

    def over_repeats(self, scenario: str, metric: str, other: str) -> Difference | None:
        """The method in focus minus another over repeats, where there is more than one."""
        difference = self.trainings[metric].differences.get((scenario, other))
        return difference if difference is not None and difference.repeats > 1 else None


def compute_report(
    collection: RunCollection,
    *,
    alpha: float,
    replicates: int,
    command: str,
    say: Say,
    margin: float = 0.0,
    folders: Sequence[Path] = (),
) -> Report:
    """Do the statistics: tests at level `alpha`, intervals from so many bootstrap replicates."""
    rankings = {metric: rank_methods(collection, metric, alpha) for metric in METRICS}
    draws = {}
    for scenario in collection.scenarios:
        say(f"comparing methods in {scenario}")
        draws[scenario] = bootstrap_methods(collection.of(scenario), replicates)
    return Report(
        collection=collection,
        rankings=rankings,
        draws=draws,
        command=command,
        margin=margin,
        folders=folders,
        replicates=replicates,
    )

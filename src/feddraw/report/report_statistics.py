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
from numpy.typing import NDArray

from feddraw.analysis.metrics import macro
from feddraw.analysis.paired_differences import Difference
from feddraw.analysis.statistics import Comparison, Table, compare, to_digits
from feddraw.report.bootstrap_over_patients import PatientBootstrap, bootstrap_methods
from feddraw.report.differences_over_trainings import (
    TrainingDifferences,
    differences_over_trainings,
)
from feddraw.results.recorded_run import METRICS, RecordedRun
from feddraw.results.run_collection import RunCollection

Floats = NDArray[np.float64]
RANKED_DIGITS = 4  # of every metric in a table; means that are printed alike share a rank


@dataclass(frozen=True)
class MeanOverRepeats:
    """Over repeats; the spread is the sample's (ddof 1), and not a number for one run."""

    value: float
    spread: float
    count: int  # repeats with a value
    runs: int

    @staticmethod
    def of(values: Sequence[float]) -> MeanOverRepeats:
        defined = [value for value in values if math.isfinite(value)]
        spread = float(np.std(defined, ddof=1)) if len(defined) > 1 else math.nan
        return MeanOverRepeats(
            float(np.mean(defined)) if defined else math.nan, spread, len(defined), len(values)
        )


@dataclass(frozen=True, eq=False)
class MethodRanking:
    """The comparison over scenarios, or why there is none; and what had to be left out of it."""

    comparison: Comparison | None
    reason: str
    left_out: tuple[str, ...]


def mean_over_repeats(
    runs: Sequence[RecordedRun], metric: str, finding: str = ""
) -> MeanOverRepeats:
    return MeanOverRepeats.of([run.test(metric, finding) for run in runs])


def mean_over_findings(
    runs: Sequence[RecordedRun], metric: str, findings: Sequence[str]
) -> MeanOverRepeats:
    """The same for the mean over some of the findings, of those that have a value."""
    return MeanOverRepeats.of(
        [macro([run.test(metric, finding) for finding in findings]) for run in runs]
    )


def rank_methods(collection: RunCollection, metric: str, alpha: float) -> MethodRanking:
    """Means over the repeats that all methods have, ranked in every scenario where that is
    possible.
    """
    values = {
        (run.scenario, run.method, run.repeat): run.test(metric)
        for run in collection.runs
        if not run.reference and math.isfinite(run.test(metric))
    }
    there = {(scenario, method) for scenario, method, _ in values}
    scenarios = collection.scenarios
    rare = [
        m
        for m in collection.methods
        if sum((s, m) in there for s in scenarios) <= len(scenarios) / 2
    ]
    methods = [m for m in collection.methods if m not in rare]
    common = {s: _common_repeats(values, s, methods) for s in scenarios}
    kept = [scenario for scenario in scenarios if common[scenario]]
    left_out = [f"{method}: it has results in at most half of the scenarios" for method in rare]
    left_out += [
        f"{s}: no seed in which all methods have a result" for s in scenarios if s not in kept
    ]
    if len(kept) < 2 or len(methods) < 2:
        few = (
            f"{len(methods)} method{'s' * (len(methods) != 1)} in {len(kept)}"
            f" scenario{'s' * (len(kept) != 1)}"
        )
        return MethodRanking(
            None, f"Ranks need two methods and two scenarios; there are {few}.", tuple(left_out)
        )
    table = [
        [float(np.mean([values[s, m, repeat] for repeat in common[s]])) for m in methods]
        for s in kept
    ]
    found = compare(
        to_digits(Table(tuple(kept), tuple(methods), np.array(table)), RANKED_DIGITS), alpha=alpha
    )
    return MethodRanking(found, "", tuple(left_out))


def _common_repeats(
    values: Mapping[tuple[str, str, str], float], scenario: str, methods: Sequence[str]
) -> set[str]:
    repeats = [{r for s, m, r in values if s == scenario and m == method} for method in methods]
    return set.intersection(*repeats) if repeats else set()


Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Report:
    """All that is needed to write about a collection of runs."""

    collection: RunCollection
    rankings: Mapping[str, MethodRanking]  # by metric
    draws: Mapping[str, PatientBootstrap]  # by scenario
    command: str
    margin: float = 0.0  # how far below another method still counts as no worse; 0: not asked
    folders: Sequence[Path] = ()  # where the runs were found
    replicates: int = 0  # of the bootstrap

    @cached_property
    def trainings(self) -> dict[str, TrainingDifferences]:
        """By metric: the method in focus minus each other, over repeats."""
        return {
            metric: differences_over_trainings(self.collection.runs, metric, self.focus)
            for metric in METRICS
        }

    def over_repeats(self, scenario: str, metric: str, other: str) -> Difference | None:
        """The method in focus minus another over repeats, where there is more than one."""
        found = self.trainings[metric].found.get((scenario, other))
        return found if found is not None and found.repeats > 1 else None

    def mean(self, scenario: str, method: str, metric: str, finding: str = "") -> MeanOverRepeats:
        return mean_over_repeats(self.collection.of(scenario, method), metric, finding)

    def replicates_in(self, scenario: str) -> int:
        """Of the bootstrap; none where methods could not be compared on the same patients."""
        return 0 if self.draws[scenario].why_none else self.replicates

    @property
    def focus(self) -> str:
        """The method that others are compared with: FedDRAW, or else the first."""
        methods = self.collection.methods or self.collection.references
        return next((method for method in methods if method.split(" ")[0] == "feddraw"), methods[0])

    @property
    def shown(self) -> list[str]:
        """Methods, then references: the order of every table and the look of every line."""
        return self.collection.methods + self.collection.references


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
    """Do the statistics."""
    rankings = {metric: rank_methods(collection, metric, alpha) for metric in METRICS}
    draws = {}
    for scenario in collection.scenarios:
        say(f"comparing methods in {scenario}")
        draws[scenario] = bootstrap_methods(collection.of(scenario), replicates)
    return Report(collection, rankings, draws, command, margin, folders, replicates)

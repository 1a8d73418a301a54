"""One method minus each other, paired over trainings (seeds, folds); also on the last round and the
last five.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from feddraw.analysis.paired_differences import Difference, against, mean_of_last
from feddraw.report.runs import RecordedRun, number_of_folds

ALPHA = 0.05  # of tests and intervals within a scenario

# By scenario (empty: over all of them) and method.
DifferenceByPair = Mapping[tuple[str, str], Difference]


@dataclass(frozen=True, eq=False)
class TrainingDifferences:
    """A method minus each other one over repeats, and the same on other rounds than the last."""

    differences: DifferenceByPair
    folds: int  # of how many the repeats are, and 0 where they share no training images by design
    split: str  # that was evaluated in every round; empty where none was
    last: DifferenceByPair  # on that split, after the last round
    last_five: DifferenceByPair

    @property
    def repeats(self) -> int:
        """The most that a pair of methods has."""
        return max((pair.repeats for pair in self.differences.values()), default=0)


def differences_over_trainings(
    runs: Sequence[RecordedRun], metric: str, first: str
) -> TrainingDifferences:
    """The first method minus every other one, over the repeats that both have; the runs are those
    of the repeats that all methods have.
    """
    folds = number_of_folds(runs)
    final = {run: run.test(metric) for run in runs}
    split = _split_of_every_round(runs, metric)
    last: dict[RecordedRun, float] = {}
    last_five: dict[RecordedRun, float] = {}
    if split:
        for run in runs:
            curve = run.curve(split, metric)
            last[run] = curve[-1] if curve else math.nan
            last_five[run] = mean_of_last(curve)
    return TrainingDifferences(
        differences=_differences_to_others(final, first, folds),
        folds=folds,
        split=split,
        last=_differences_to_others(last, first),
        last_five=_differences_to_others(last_five, first),
    )


def _split_of_every_round(runs: Sequence[RecordedRun], metric: str) -> str:
    """The split on which every method was evaluated in the last rounds; empty where there is
    none.
    """
    for split in ("test", "validation"):
        means = [mean_of_last(run.curve(split, metric)) for run in runs if not run.reference]
        if np.isfinite(means).all():
            return split
    return ""


def _differences_to_others(
    values: Mapping[RecordedRun, float], first: str, folds: int = 0
) -> DifferenceByPair:
    """The first method minus each other: with all signs turned, the others minus the first."""
    rows = [
        (run.scenario, run.method, run.repeat, -value)
        for run, value in values.items()
        if math.isfinite(value)
    ]
    methods = {method for _, method, _, _ in rows}
    if first not in methods or len(methods) < 2:
        return {}
    return {
        (difference.scenario, difference.method): difference
        for difference in against(rows, first, folds=folds)
    }


def note_on_trainings(trainings: TrainingDifferences) -> str:
    """What the intervals of a table are made of."""
    wider = ""
    if trainings.folds:
        wider = (
            f", widened because {trainings.folds} folds share training images (Nadeau and Bengio)"
        )
    return f"CI over trainings: Student's t over paired seeds{wider}."

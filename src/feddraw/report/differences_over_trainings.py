"""One method minus each other, paired over trainings (seeds, folds); also on the last round and the
last five.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from feddraw.analysis.paired_differences import Difference, against, mean_of_last
from feddraw.results.recorded_run import RecordedRun

DifferenceByPair = Mapping[
    tuple[str, str], Difference
]  # by scenario (empty: over all of them) and method


@dataclass(frozen=True, eq=False)
class TrainingDifferences:
    """A method minus each other one over repeats, and the same on other rounds than the last."""

    found: DifferenceByPair
    folds: int  # of how many the repeats are, and 0 where they share no training images by design
    split: str  # that was evaluated in every round; empty where none was
    last: DifferenceByPair  # on that split, after the last round
    last_five: DifferenceByPair

    @property
    def repeats(self) -> int:
        return max((one.repeats for one in self.found.values()), default=0)


def differences_over_trainings(
    runs: Sequence[RecordedRun], metric: str, first: str
) -> TrainingDifferences:
    """The first method minus every other one, over the repeats that both have."""
    folds = _common_number_of_folds(runs)
    methods = [run for run in runs if not run.reference]
    curves = {
        s: [mean_of_last(run.curve(s, metric)) for run in methods] for s in ("test", "validation")
    }
    split = next((s for s, means in curves.items() if np.isfinite(means).all()), "")
    last, last_five = (
        {run: value(run.curve(split, metric)) for run in runs} if split else {}
        for value in (lambda curve: curve[-1] if curve else math.nan, mean_of_last)
    )
    found = _training_differences_to_others({run: run.test(metric) for run in runs}, first, folds)
    return TrainingDifferences(
        found,
        folds,
        split,
        _training_differences_to_others(last, first),
        _training_differences_to_others(last_five, first),
    )


def _common_number_of_folds(runs: Sequence[RecordedRun]) -> int:
    """Of how many folds all runs are; 0 where they are not, or a file has something else there."""
    first = runs[0].flat.get("folds", 0)
    alike = isinstance(first, int) and all(run.flat.get("folds", 0) == first for run in runs)
    return first if alike and first > 1 else 0


def _training_differences_to_others(
    values: Mapping[RecordedRun, float], first: str, folds: int = 0
) -> DifferenceByPair:
    """With all signs turned, the others minus the first are the first minus the others."""
    rows = [
        (run.scenario, run.method, run.repeat, -value)
        for run, value in values.items()
        if math.isfinite(value)
    ]
    if not {first} < {method for _, method, *_ in rows}:
        return {}
    return {(one.scenario, one.method): one for one in against(rows, first, folds=folds)}


def trainings_note(trainings: TrainingDifferences) -> str:
    wider = f", widened because {trainings.folds} folds share training images (Nadeau and Bengio)"
    return f"CI over trainings: Student's t over paired seeds{wider if trainings.folds else ''}."

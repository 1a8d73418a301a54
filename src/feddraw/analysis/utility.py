"""What a model is worth: a metric of the report on pooled test patients and on each site's own, for
everybody and for each draw of patients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.bootstrap import Measure, Truth, bootstrap

Floats = NDArray[np.float64]
Scores = NDArray[np.floating[Any]]  # (images, findings), probabilities

POOLED = "test"  # the group of all test patients; other groups are called by their site


@dataclass(frozen=True, eq=False)
class PatientGroup:
    """Images on which models are measured, with whose each is."""

    name: str
    truth: Truth  # (images, findings)
    patients: NDArray[np.int64] | None  # None: each image is drawn by itself


@dataclass(frozen=True, eq=False)
class Utility:
    """A metric, its mean over the findings or that of one, on some groups of patients."""

    measure: Measure
    groups: tuple[PatientGroup, ...]
    # What makes calls of scores at thresholds, where calls are measured and not scores.
    call: Callable[[Scores, Floats], Floats] | None = None
    finding: int | None = None  # None: the mean over all that have a value
    replicates: int = 200

    def of(self, scores: Sequence[Mapping[str, Scores]], thresholds: Sequence[Floats]) -> Floats:
        """(models, groups, 1 + replicates), from each model's scores by group and its thresholds;
        NaN where a group has no value.

        All models, and all trainings with the same patients, have the same patients drawn.
        """
        by_group = []
        for group in self.groups:
            outputs = [
                self._outputs(of_model[group.name], limits)
                for of_model, limits in zip(scores, thresholds, strict=True)
            ]
            values = bootstrap(
                outputs,
                self._columns(group.truth),
                np.random.default_rng(0),
                measure=self.measure,
                patients=group.patients,
                replicates=self.replicates,
            )
            by_group.append(values)
        return np.stack(by_group, axis=1)

    def _outputs(self, scores: Scores, thresholds: Floats) -> Floats:
        values = scores.astype(np.float64)
        return self._columns(values if self.call is None else self.call(values, thresholds))

    def _columns(self, array: NDArray[Any]) -> NDArray[Any]:
        """Of the finding, or of all."""
        return array if self.finding is None else array[:, [self.finding]]

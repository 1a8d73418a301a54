"""The test images of recorded runs as diagnostic tests: all of them, or those of one site or
subgroup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.diagnostic_measures import DiagnosticTest, ModelScores
from feddraw.data.subgroups import NOT_STATED
from feddraw.report.patients import pooled_images
from feddraw.report.runs import Predictions, RecordedRun, thresholds

ScoredRun = tuple[RecordedRun, Predictions]  # the scores are those of one common model


@dataclass(frozen=True)
class Subgroup:
    """Some images: of a site, of a sex."""

    grouping: str
    value: str  # "" where the grouping is not stated

    @property
    def name(self) -> str:
        return self.value or "not stated"

    def chosen(self, predictions: Predictions) -> NDArray[np.bool_]:
        """Which images are in it; none where a run does not know the grouping or the value."""
        for grouping in predictions.groupings:
            if grouping.name == self.grouping:
                if self.value == "":
                    return np.asarray(grouping.of_image == NOT_STATED)
                if self.value in grouping.values:
                    return np.asarray(grouping.of_image == grouping.values.index(self.value))
        return np.zeros(len(predictions.truth), dtype=np.bool_)


def subgroups_of(predictions: Sequence[Predictions]) -> dict[str, list[Subgroup]]:
    """By grouping that all of them have, the subgroups with an image, in order; last those of
    which it is not stated.
    """
    if not predictions:
        return {}
    first, *others = (
        {grouping.name: grouping for grouping in part.groupings} for part in predictions
    )
    shared = {}
    for name in first:
        if not all(name in by_name for by_name in others):
            continue
        every = [by_name[name] for by_name in (first, *others)]
        values = dict.fromkeys(value for grouping in every for value in grouping.values)
        candidates = [Subgroup(name, value) for value in (*values, "")]
        shared[name] = [
            subgroup
            for subgroup in candidates
            if any(subgroup.chosen(part).any() for part in predictions)
        ]
    return shared


def diagnostic_tests(
    scored: Sequence[ScoredRun], subgroup: Subgroup | None = None
) -> dict[str, DiagnosticTest]:
    """By finding, from the test scores of one method's runs: a model per seed. Of all images, or of
    a subgroup's.
    """
    if not scored:
        return {}
    images = pooled_images([predictions for _, predictions in scored])
    tests = {}
    for finding in scored[0][1].classes:
        if not all(finding in predictions.classes for _, predictions in scored):
            continue
        models = []
        for place, (run, predictions) in enumerate(scored):
            column = predictions.classes.index(finding)
            chosen = np.ones(len(predictions.truth), dtype=np.bool_)
            if subgroup is not None:
                chosen = subgroup.chosen(predictions)
            models.append(
                ModelScores.of_known(
                    scores=predictions.scores[chosen, column],
                    truth=predictions.truth[chosen, column],
                    patients=images.owners[images.repeat == place][chosen],
                    threshold=thresholds(run)[run.findings.index(finding)],
                )
            )
        tests[finding] = DiagnosticTest(models)
    return tests

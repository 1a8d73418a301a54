"""The test images of recorded runs as diagnostic tests: all of them, or those of one site or
subgroup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis.diagnostic_measures import DiagnosticTest, ModelScores
from feddraw.data.dataset import SITE
from feddraw.data.subgroups import NOT_STATED
from feddraw.report.patients import pooled_images
from feddraw.report.runs import Predictions, RecordedRun, thresholds
from feddraw.results.score_counts import (
    Calls,
    Histograms,
    ScoreCounts,
    bin_scores,
    read_score_counts,
)
from feddraw.tasks import task_of_run

ScoredRun: TypeAlias = tuple[RecordedRun, Predictions]  # the scores are of one common model
CountedRun: TypeAlias = tuple[RecordedRun, ScoreCounts]


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
    called = [task_of_run(run).calls_of_scores(predictions.scores) for run, predictions in scored]
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
            calls = called[place]
            models.append(
                ModelScores.of_known(
                    scores=predictions.scores[chosen, column],
                    truth=predictions.truth[chosen, column],
                    patients=images.owners[images.repeat == place][chosen],
                    threshold=thresholds(run)[run.findings.index(finding)],
                    called=None if calls is None else calls[chosen, column],
                )
            )
        tests[finding] = DiagnosticTest(models)
    return tests


# ------------------------------------------------------------------------------------- from counts


def counted_runs(runs: Sequence[RecordedRun]) -> Iterator[CountedRun]:
    """Of each method the first run whose sites counted their test images by score: counts of
    several seeds do not say which images are the same. Not where they are too many to measure.
    """
    methods = set()
    for run in runs:
        counts = read_score_counts(run.path)
        if counts is None or counts.findings != run.findings or run.method in methods:
            continue
        if "test" in counts.by_split and not counts.why_unmeasured("test"):
            methods.add(run.method)
            yield run, counts


def tests_of_counts(counted: CountedRun) -> dict[str, DiagnosticTest]:
    """By finding, of all images."""
    run, counts = counted
    return _by_finding(run, counts.by_split["test"], counts.calls_by_split.get("test"))


def groupings_of_counts(
    counted: CountedRun,
) -> dict[str, dict[Subgroup, dict[str, DiagnosticTest]]]:
    """The same by site, where sites sent their counts in clear, and by subgroup; without subgroups
    of which no site has sent an image.
    """
    run, counts = counted
    every: list[tuple[str, str, Histograms, Calls | None]] = [
        (SITE, site, of_site["test"], counts.calls_by_site.get(site, {}).get("test"))
        for site, of_site in counts.by_site.items()
    ]
    every += [(*subgroup, None) for subgroup in counts.subgroups("test")]
    groupings: dict[str, dict[Subgroup, dict[str, DiagnosticTest]]] = {}
    for grouping, value, histograms, calls in every:
        if histograms.any():
            of_grouping = groupings.setdefault(grouping, {})
            of_grouping[Subgroup(grouping, value)] = _by_finding(run, histograms, calls)
    return groupings


def _by_finding(
    run: RecordedRun, histograms: Histograms, calls: Calls | None
) -> dict[str, DiagnosticTest]:
    limits: Mapping[str, float] = dict(zip(run.findings, thresholds(run), strict=True))
    return {
        finding: diagnostic_test_of_histogram(
            histograms[:, place],
            limits[finding],
            None if calls is None else _calls_of_class(calls, place),
        )
        for place, finding in enumerate(run.findings)
    }


def _calls_of_class(calls: Calls, place: int) -> tuple[int, int]:
    """How many images of the other classes, and of this one, are called this class."""
    right = int(calls[place, place])
    return int(calls[:, place].sum()) - right, right


def diagnostic_test_of_histogram(
    histogram: NDArray[np.int64], threshold: float, called: tuple[int, int] | None = None
) -> DiagnosticTest:
    """As many images of each label as were counted in each bin (labels × bins), with the score in
    the middle of the bin; each image is one patient. `called` says how many of each label are
    called where no threshold says which: no measure asks for the score of a called image, so it is
    those with the highest scores.
    """
    scores = np.concatenate([np.repeat(bin_scores(), of_label) for of_label in histogram])
    labels = np.repeat(np.arange(2), histogram.sum(axis=1))
    calls = None
    if called is not None:
        ranks = [np.arange(images)[::-1] for images in histogram.sum(axis=1)]
        calls = np.concatenate(
            [rank < count for rank, count in zip(ranks, called, strict=True)]
        ).astype(np.float64)
    model = ModelScores(scores, labels, np.arange(len(labels)), threshold, calls)
    return DiagnosticTest([model])

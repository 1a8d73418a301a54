"""Federated evaluation that merges: sites send counts of images by score, the server adds them up.

A mean of the sites' AUCs is not the AUC of all their images. Counts of positive and negative images
in fixed bins of the score can be added, and give AUC (ties within a bin count half), sensitivity
and specificity of all images together. For tasks that call one class, counts of images by class and
by the class that they are called come with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict
from numpy.typing import NDArray

from feddraw.core import MOST_IMAGES
from feddraw.data.subgroups import NOT_STATED, Subgrouping
from feddraw.results.metrics import RunMetrics, SplitMetrics
from feddraw.results.score_counts import (
    BIN_EDGES,
    BINS,
    Calls,
    Histograms,
    SubgroupHistograms,
)
from feddraw.tasks import MeasuredSplit, Task

SMALLEST_PROBABILITY = 1e-12

EVALUATED_SPLITS = ("validation", "test")
# Patients of a finding and subgroup below which a site sends no counts of it.
LEAST_PATIENTS = 10


def count_by_score(
    scores: NDArray[np.floating[Any]], truth: NDArray[np.floating[Any] | np.integer[Any]]
) -> Histograms:
    """Images by label, finding and bin of their score, a probability.

    A NaN counts as 0 (see `findings_with_broken_scores`). Labels that are not known (NaN) are not
    counted.
    """
    probabilities = np.clip(
        np.nan_to_num(scores.astype(np.float64)), SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY
    )
    logits = np.log(probabilities / (1 - probabilities))
    bins = np.digitize(logits, BIN_EDGES)
    findings = scores.shape[1]
    known = ~np.isnan(truth)
    labels = np.where(known, truth, 0).astype(np.int64)
    cells = (labels * findings + np.arange(findings)) * BINS + bins
    return np.bincount(cells[known], minlength=2 * findings * BINS).reshape(2, findings, BINS)


def histograms_to_metrics(
    split: str, counts: Histograms, broken: Sequence[int] = ()
) -> dict[str, list[int]]:
    """As metrics that Flower carries: filled bins as (index, count); `broken` are findings with
    scores not finite.
    """
    flat = counts.ravel()
    filled = np.flatnonzero(flat)
    metrics = {f"{split}-places": filled.tolist(), f"{split}-counts": flat[filled].tolist()}
    if broken:
        metrics[f"{split}-not-finite"] = list(broken)
    return metrics


def subgroup_counts(
    scores: NDArray[np.floating[Any]],
    truth: NDArray[np.floating[Any] | np.integer[Any]],
    groupings: Sequence[Subgrouping],
    patients: NDArray[np.int64],
) -> SubgroupHistograms:
    """The same for each value of each grouping, one grouping after another.

    A finding of a subgroup with fewer than `LEAST_PATIENTS` patients is left out whole. What is
    left out, with the images whose subgroup is not stated, is what all images less the subgroups
    that are sent give away: so more subgroups are left out until it has enough patients as well.
    """
    findings = scores.shape[1]
    counted = []
    for grouping in groupings:
        members = [grouping.of_image == place for place in range(len(grouping.values))]
        histograms = [count_by_score(scores[member], truth[member]) for member in members]
        for finding in range(findings):
            known = ~np.isnan(truth[:, finding])
            in_each = [member & known for member in members]
            for place in _left_out(in_each, known & (grouping.of_image == NOT_STATED), patients):
                histograms[place][:, finding] = 0
        counted += histograms
    if not counted:
        return np.zeros((0, 2, findings, BINS), np.int64)
    return np.stack(counted)


def _left_out(
    in_each: Sequence[NDArray[np.bool_]],
    not_stated: NDArray[np.bool_],
    patients: NDArray[np.int64],
) -> set[int]:
    """The subgroups that are not sent."""

    def count(images: NDArray[np.bool_]) -> int:
        return len(np.unique(patients[images]))

    sizes = [count(images) for images in in_each]
    left_out = {place for place, size in enumerate(sizes) if 0 < size < LEAST_PATIENTS}
    hidden = not_stated.copy()
    for place in left_out:
        hidden |= in_each[place]
    for place in sorted(range(len(sizes)), key=lambda place: sizes[place]):
        if not 0 < count(hidden) < LEAST_PATIENTS:
            break
        if sizes[place] and place not in left_out:
            left_out.add(place)
            hidden |= in_each[place]
    return left_out


def subgroups_to_metrics(split: str, counts: SubgroupHistograms) -> dict[str, list[int]]:
    """As metrics that Flower carries, beside those of all images."""
    flat = counts.ravel()
    filled = np.flatnonzero(flat)
    places = f"{split}-subgroup-places"
    return {places: filled.tolist(), f"{split}-subgroup-counts": flat[filled].tolist()}


def calls_to_metrics(split: str, calls: Calls) -> dict[str, list[int]]:
    """Images by class and called class as metrics that Flower carries; nothing for tasks without
    such calls.
    """
    flat = calls.ravel()
    filled = np.flatnonzero(flat)
    if not len(filled):
        return {}
    places = f"{split}-called-places"
    return {places: filled.tolist(), f"{split}-called-counts": flat[filled].tolist()}


def histograms_to_words(content: RecordDict, findings: int) -> NDArray[np.uint64]:
    """A site's counts of both splits as one row of whole numbers, which can be added up under
    masks; without those of subgroups, which may be of one site only.
    """
    rows = []
    for split in EVALUATED_SPLITS:
        flags = np.zeros(findings, np.int64)
        flags[findings_with_broken_scores([content], split, findings)] = 1
        rows += [add_up_histograms([content], split, findings).ravel(), flags]
        rows.append(add_up_calls([content], split, findings).ravel())
    return np.concatenate(rows).astype(np.uint64)


def words_of(findings: int) -> int:
    """How many whole numbers such a row has."""
    return len(EVALUATED_SPLITS) * (2 * findings * BINS + findings + findings**2)


def histograms_from_words(words: NDArray[np.uint64], findings: int) -> MetricRecord:
    """The sum of such rows, as one site with all images would have sent it."""
    rows = words.reshape(len(EVALUATED_SPLITS), -1).astype(np.int64)
    metrics: dict[str, list[int]] = {}
    of_all = 2 * findings * BINS
    for split, row in zip(EVALUATED_SPLITS, rows, strict=True):
        counts, flags, calls = np.split(row, np.cumsum([of_all, findings]))
        broken = np.flatnonzero(flags).tolist()
        metrics |= histograms_to_metrics(split, counts.reshape(2, findings, BINS), broken)
        metrics |= calls_to_metrics(split, calls.reshape(findings, findings))
    return MetricRecord({name: numbers for name, numbers in metrics.items() if numbers})


def add_up_histograms(contents: Sequence[RecordDict], split: str, findings: int) -> Histograms:
    """The sites' counts added up; those of another form are left out."""
    total = np.zeros(2 * findings * BINS, np.int64)
    _add_cells(total, contents, split, findings * MOST_IMAGES)
    return total.reshape(2, findings, BINS)


def add_up_subgroups(
    contents: Sequence[RecordDict], split: str, findings: int, subgroups: int
) -> SubgroupHistograms:
    """The same for subgroups."""
    total = np.zeros(subgroups * 2 * findings * BINS, np.int64)
    _add_cells(total, contents, f"{split}-subgroup", subgroups * findings * MOST_IMAGES)
    return total.reshape(subgroups, 2, findings, BINS)


def add_up_calls(contents: Sequence[RecordDict], split: str, findings: int) -> Calls:
    """The same of images by class and called class."""
    total = np.zeros(findings**2, np.int64)
    _add_cells(total, contents, f"{split}-called", MOST_IMAGES)
    return total.reshape(findings, findings)


def _add_cells(
    total: NDArray[np.int64], contents: Sequence[RecordDict], name: str, most: int
) -> None:
    """Add the filled cells that replies have under a name, where they are such."""
    for content in contents:
        for record in content.metric_records.values():
            cells = _whole_numbers(record.get(f"{name}-places", []))
            counts = _whole_numbers(record.get(f"{name}-counts", []))
            cells_exist = cells.shape == counts.shape and (cells < len(total)).all()
            if cells_exist and counts.sum() <= most:
                np.add.at(total, cells, counts)


def why_implausible(content: RecordDict, size: float, findings: int, subgroups: int = 0) -> str:
    """Why counts cannot be those of so many images; empty if they can.

    Of both splits together a finding has at most one count an image, a subgroup has at most the
    counts of all images, bin by bin, and a class is called at most as often as it has images.
    """
    counted = np.zeros(findings, np.int64)
    for split in EVALUATED_SPLITS:
        of_all = add_up_histograms([content], split, findings)
        counted += of_all.sum(axis=(0, 2))
        if (add_up_calls([content], split, findings).sum(axis=1) > of_all[1].sum(axis=1)).any():
            return f"it calls more {split} images of a class than it counts"
        if (add_up_subgroups([content], split, findings, subgroups) > of_all).any():
            return f"it counts more {split} images of a subgroup than of all"
    most = int(counted.max(initial=0))
    return f"it counts {most:,} images, and says that it has {size:,.0f}" if most > size else ""


def findings_with_broken_scores(
    contents: Sequence[RecordDict], split: str, findings: int
) -> list[int]:
    """The findings for which a site's scores were not finite numbers."""
    broken: set[int] = set()
    for content in contents:
        for record in content.metric_records.values():
            broken.update(_whole_numbers(record.get(f"{split}-not-finite", [])).tolist())
    return sorted(index for index in broken if index < findings)


def _whole_numbers(metric: Any) -> NDArray[np.int64]:
    """Whole numbers that no sum can carry beyond 64 bits; for anything else an empty array."""
    numbers = metric if isinstance(metric, list) else [metric]
    if all(isinstance(number, int) and 0 <= number <= MOST_IMAGES for number in numbers):
        return np.array(numbers, np.int64)
    return np.array([], np.int64)


def histogram_auc(negatives: NDArray[np.int64], positives: NDArray[np.int64]) -> float:
    """The AUC of one finding from its counts by bin; NaN where one label is missing."""
    pairs = int(positives.sum()) * int(negatives.sum())
    if not pairs:
        return math.nan
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum() / pairs)


def best_threshold_bin(negatives: NDArray[np.int64], positives: NDArray[np.int64]) -> int | None:
    """The bin from which on images count as positive, for the largest GM (the middle of equals);
    None for one label.
    """
    if not (negatives.any() and positives.any()):
        return None
    missed = np.concatenate([[0], np.cumsum(positives)])
    rejected = np.concatenate([[0], np.cumsum(negatives)])
    products = (positives.sum() - missed) * rejected
    best = np.flatnonzero(products == products.max())
    return int(best[(len(best) - 1) // 2])


def histogram_metrics(
    counts: Histograms,
    findings: Sequence[str],
    edges: Sequence[int | None],
    broken: Sequence[int] = (),
    *,
    task: Task,
    calls: Calls | None = None,
) -> SplitMetrics:
    """All metrics of the summed counts; broken findings have none.

    `edges` are the bins from which on images count as positive, by finding.
    """
    counts = counts.copy()
    counts[:, list(broken)] = 0
    areas: dict[str, float] = {}
    rates: dict[str, tuple[float, float]] = {}
    thresholds: dict[str, float] = {}
    for index, (name, edge) in enumerate(zip(findings, edges, strict=True)):
        negatives = counts[0, index]
        positives = counts[1, index]
        areas[name] = histogram_auc(negatives, positives)
        rates[name] = _sensitivity_and_specificity(negatives, positives, edge)
        thresholds[name] = _probability_at(edge)
    nothing = np.zeros((len(findings), len(findings)), np.int64)
    measured = MeasuredSplit(
        areas=areas,
        rates=rates,
        thresholds=thresholds,
        calls=nothing if calls is None else calls,
        broken=[findings[index] for index in broken],
    )
    return task.split_metrics(measured)


def _sensitivity_and_specificity(
    negatives: NDArray[np.int64], positives: NDArray[np.int64], edge: int | None
) -> tuple[float, float]:
    if edge is None:
        return math.nan, math.nan
    return _share(positives[edge:], positives), _share(negatives[:edge], negatives)


def _share(some: NDArray[np.int64], whole: NDArray[np.int64]) -> float:
    return float(some.sum() / whole.sum()) if whole.any() else math.nan


def _probability_at(edge: int | None) -> float:
    """The score at the lower edge of a bin."""
    if edge is None:
        return math.nan
    logits = np.concatenate([[-np.inf], BIN_EDGES, [np.inf]])
    return float(1 / (1 + np.exp(-logits[edge])))


def merged_histogram_metrics(
    contents: list[RecordDict], findings: Sequence[str], task: Task
) -> RunMetrics:
    """Metrics from all sites' counts: thresholds from the validation split, and the test split
    where it was sent.
    """
    validation = add_up_histograms(contents, "validation", len(findings))
    edges: list[int | None] = [None] * len(findings)
    if task.has_thresholds:
        edges = [best_threshold_bin(*validation[:, index]) for index in range(len(findings))]
    broken = findings_with_broken_scores(contents, "validation", len(findings))
    calls = add_up_calls(contents, "validation", len(findings))
    metrics = RunMetrics(
        validation=histogram_metrics(validation, findings, edges, broken, task=task, calls=calls)
    )
    test = add_up_histograms(contents, "test", len(findings))
    if not test.any():
        return metrics
    # without thresholds from validation data there is no GM of test data either
    broken_in_test = findings_with_broken_scores(contents, "test", len(findings))
    broken_in_any = sorted({*broken, *broken_in_test})
    calls = add_up_calls(contents, "test", len(findings))
    tested = histogram_metrics(test, findings, edges, broken_in_any, task=task, calls=calls)
    return replace(metrics, test=tested)


def histogram_metrics_for_log(metrics: RunMetrics, task: Task) -> MetricRecord:
    """The numbers for Flower's own log."""
    splits = {"validation": metrics.validation, "test": metrics.test}
    evaluated = {name: split for name, split in splits.items() if split.evaluated}
    record = MetricRecord()
    for name, split in evaluated.items():
        for metric in (*task.metrics, *task.more):
            record[f"{name}-{metric}"] = split.of(metric).macro
    for name, split in evaluated.items():
        for finding, auc in split.auc.per_class.items():
            record[f"{name}-auc.{finding}"] = auc
    return record

"""Federated evaluation that merges: sites send counts of images by score, the server adds them up.

A mean of the sites' AUCs is not the AUC of all their images. Counts of positive and negative images
in fixed bins of the score can be added, and give AUC (ties within a bin count half), sensitivity
and specificity of all images together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict
from numpy.typing import NDArray

from feddraw.analysis.metrics import split_metrics
from feddraw.core import MOST_IMAGES
from feddraw.results.metrics import RunMetrics, SplitMetrics

# bins of the logit, which spreads rare findings' small probabilities out
BINS = 2048
REACH = 16.0
BIN_EDGES = np.linspace(-REACH, REACH, BINS + 1)[1:-1]
SMALLEST_PROBABILITY = 1e-12

EVALUATED_SPLITS = ("validation", "test")
Histograms = NDArray[np.int64]  # (2, findings, bins): negative and positive images


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


def histograms_to_words(content: RecordDict, findings: int) -> NDArray[np.uint64]:
    """A site's counts of both splits as one row of whole numbers, which can be added up under
    masks.
    """
    rows = []
    for split in EVALUATED_SPLITS:
        flags = np.zeros(findings, np.int64)
        flags[findings_with_broken_scores([content], split, findings)] = 1
        rows += [add_up_histograms([content], split, findings).ravel(), flags]
    return np.concatenate(rows).astype(np.uint64)


def words_of(findings: int) -> int:
    """How many whole numbers such a row has."""
    return len(EVALUATED_SPLITS) * (2 * findings * BINS + findings)


def histograms_from_words(words: NDArray[np.uint64], findings: int) -> MetricRecord:
    """The sum of such rows, as one site with all images would have sent it."""
    rows = words.reshape(len(EVALUATED_SPLITS), -1).astype(np.int64)
    metrics: dict[str, list[int]] = {}
    for split, row in zip(EVALUATED_SPLITS, rows, strict=True):
        counts, flags = np.split(row, [2 * findings * BINS])
        broken = np.flatnonzero(flags).tolist()
        metrics |= histograms_to_metrics(split, counts.reshape(2, findings, BINS), broken)
    return MetricRecord({name: numbers for name, numbers in metrics.items() if numbers})


def add_up_histograms(contents: Sequence[RecordDict], split: str, findings: int) -> Histograms:
    """The sites' counts added up; those of another form are left out."""
    total = np.zeros(2 * findings * BINS, np.int64)
    for content in contents:
        for record in content.metric_records.values():
            cells = _whole_numbers(record.get(f"{split}-places", []))
            counts = _whole_numbers(record.get(f"{split}-counts", []))
            cells_exist = cells.shape == counts.shape and (cells < len(total)).all()
            if cells_exist and counts.sum() <= findings * MOST_IMAGES:
                np.add.at(total, cells, counts)
    return total.reshape(2, findings, BINS)


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
    return split_metrics(areas, rates, thresholds, [findings[index] for index in broken])


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


def merged_histogram_metrics(contents: list[RecordDict], findings: Sequence[str]) -> RunMetrics:
    """Metrics from all sites' counts: thresholds from the validation split, and the test split
    where it was sent.
    """
    validation = add_up_histograms(contents, "validation", len(findings))
    edges = [best_threshold_bin(*validation[:, index]) for index in range(len(findings))]
    broken = findings_with_broken_scores(contents, "validation", len(findings))
    metrics = RunMetrics(validation=histogram_metrics(validation, findings, edges, broken))
    test = add_up_histograms(contents, "test", len(findings))
    if not test.any():
        return metrics
    # without thresholds from validation data there is no GM of test data either
    broken_in_test = findings_with_broken_scores(contents, "test", len(findings))
    broken_in_any = sorted({*broken, *broken_in_test})
    return replace(metrics, test=histogram_metrics(test, findings, edges, broken_in_any))


def histogram_metrics_for_log(metrics: RunMetrics) -> MetricRecord:
    """The numbers for Flower's own log."""
    splits = {"validation": metrics.validation, "test": metrics.test}
    evaluated = {name: split for name, split in splits.items() if split.evaluated}
    record = MetricRecord()
    for name, split in evaluated.items():
        record[f"{name}-auc"] = split.auc.macro
        record[f"{name}-gm"] = split.gm.macro
    for name, split in evaluated.items():
        for finding, auc in split.auc.per_class.items():
            record[f"{name}-auc.{finding}"] = auc
    return record

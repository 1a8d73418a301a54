"""Federated evaluation that merges: sites send counts of images by score, the server adds them up.

A mean of the sites' AUCs is not the AUC of all their images. Counts of positive and negative images
in fixed bins of the score can be added, and give AUC (ties within a bin count half), sensitivity
and specificity of all images together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict
from numpy.typing import NDArray

from feddraw.analysis.metrics import metrics_table
from feddraw.core import MOST_IMAGES

BINS, REACH = 2048, 16.0  # of the logit, which spreads rare findings' small probabilities out
EVALUATED_SPLITS = ("validation", "test")
Histograms = NDArray[np.int64]  # (2, findings, bins): negative and positive images

BIN_EDGES = np.linspace(-REACH, REACH, BINS + 1)[1:-1]


def count_by_score(
    scores: NDArray[np.floating[Any]], truth: NDArray[np.floating[Any] | np.integer[Any]]
) -> Histograms:
    """Images by label, finding and bin of their score, a probability.

    A NaN counts as 0 (see `findings_with_broken_scores`). Labels that are not known (NaN) are not
    counted.
    """
    clipped = np.clip(np.nan_to_num(scores.astype(np.float64)), 1e-12, 1 - 1e-12)
    bins = np.digitize(np.log(clipped / (1 - clipped)), BIN_EDGES)
    findings, known = scores.shape[1], ~np.isnan(truth)
    cells = (
        np.where(known, truth, 0).astype(np.int64) * findings + np.arange(findings)
    ) * BINS + bins
    return np.bincount(cells[known], minlength=2 * findings * BINS).reshape(2, findings, BINS)


def histograms_to_metrics(
    split: str, counts: Histograms, broken: Sequence[int] = ()
) -> dict[str, list[int]]:
    """As metrics that Flower carries: filled bins as (index, count); `broken` are findings with
    scores not finite.
    """
    flat = counts.ravel()
    filled = np.flatnonzero(flat)
    found = {f"{split}-places": filled.tolist(), f"{split}-counts": flat[filled].tolist()}
    return found | ({f"{split}-not-finite": list(broken)} if broken else {})


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


def histograms_from_words(words: NDArray[np.uint64], findings: int) -> MetricRecord:
    """The sum of such rows, as one site with all images would have sent it."""
    found: dict[str, list[int]] = {}
    for split, row in zip(
        EVALUATED_SPLITS, words.reshape(len(EVALUATED_SPLITS), -1).astype(np.int64), strict=True
    ):
        counts, flags = np.split(row, [2 * findings * BINS])
        found |= histograms_to_metrics(
            split, counts.reshape(2, findings, BINS), np.flatnonzero(flags).tolist()
        )
    return MetricRecord({name: numbers for name, numbers in found.items() if numbers})


def add_up_histograms(contents: Sequence[RecordDict], split: str, findings: int) -> Histograms:
    """The sites' counts added up; those of another form are left out."""
    total = np.zeros(2 * findings * BINS, np.int64)
    for content in contents:
        for record in content.metric_records.values():
            cells, counts = (
                _histogram_counts(record.get(f"{split}-{what}", []))
                for what in ("places", "counts")
            )
            if (
                cells.shape == counts.shape
                and (cells < len(total)).all()
                and counts.sum() <= findings * MOST_IMAGES
            ):
                np.add.at(total, cells, counts)
    return total.reshape(2, findings, BINS)


def findings_with_broken_scores(
    contents: Sequence[RecordDict], split: str, findings: int
) -> list[int]:
    """The findings for which a site's scores were not finite numbers."""
    records = [record for content in contents for record in content.metric_records.values()]
    named = {
        int(index)
        for record in records
        for index in _histogram_counts(record.get(f"{split}-not-finite", []))
    }
    return sorted(index for index in named if index < findings)


def _histogram_counts(given: Any) -> NDArray[np.int64]:
    """Whole numbers that no sum can carry beyond 64 bits; for anything else an empty array."""
    numbers = given if isinstance(given, list) else [given]
    good = all(isinstance(number, int) and 0 <= number <= MOST_IMAGES for number in numbers)
    return np.array(numbers if good else [], np.int64)


def histogram_auc(negatives: NDArray[np.int64], positives: NDArray[np.int64]) -> float:
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
    found = np.concatenate([[0], np.cumsum(positives)])
    products = (positives.sum() - found) * np.concatenate([[0], np.cumsum(negatives)])
    best = np.flatnonzero(products == products.max())
    return int(best[(len(best) - 1) // 2])


def histogram_metrics(
    counts: Histograms,
    findings: Sequence[str],
    edges: Sequence[int | None],
    broken: Sequence[int] = (),
) -> dict[str, Any]:
    """All metrics of the summed counts, in the form of `metrics.json`; broken findings have
    none.
    """
    counts = counts.copy()
    counts[:, list(broken)] = 0
    areas = {name: histogram_auc(*counts[:, c]) for c, name in enumerate(findings)}
    rates = {
        name: _histogram_rates(counts[0, c], counts[1, c], edges[c])
        for c, name in enumerate(findings)
    }
    bounds = np.concatenate([[-np.inf], BIN_EDGES, [np.inf]])
    pairs = zip(findings, edges, strict=True)
    thresholds = {
        name: math.nan if edge is None else float(1 / (1 + np.exp(-bounds[edge])))
        for name, edge in pairs
    }
    return metrics_table(areas, rates, thresholds, [findings[c] for c in broken])


def _histogram_rates(
    negative: NDArray[np.int64], positive: NDArray[np.int64], edge: int | None
) -> tuple[float, float]:
    if edge is None:
        return math.nan, math.nan

    def share(some: NDArray[np.int64], whole: NDArray[np.int64]) -> float:
        return float(some.sum() / whole.sum()) if whole.any() else math.nan

    return share(positive[edge:], positive), share(negative[:edge], negative)


def merged_histogram_metrics(contents: list[RecordDict], findings: Sequence[str]) -> dict[str, Any]:
    """Metrics from all sites' counts: thresholds from the validation split, and the test split
    where it was sent.
    """
    validation = add_up_histograms(contents, "validation", len(findings))
    edges = [best_threshold_bin(*validation[:, c]) for c in range(len(findings))]
    # without thresholds from validation data there is no GM of test data either
    lost = findings_with_broken_scores(contents, "validation", len(findings))
    found = {"validation": histogram_metrics(validation, findings, edges, lost)}
    test = add_up_histograms(contents, "test", len(findings))
    lost = sorted({*lost, *findings_with_broken_scores(contents, "test", len(findings))})
    return found | ({"test": histogram_metrics(test, findings, edges, lost)} if test.any() else {})


def histogram_metrics_for_log(found: dict[str, Any]) -> MetricRecord:
    """The numbers for Flower's own log."""
    pairs = {
        f"{split}-{kind}": found[split][kind]["macro"] for split in found for kind in ("auc", "gm")
    }
    areas = {
        f"{split}-auc.{name}": auc
        for split in found
        for name, auc in found[split]["auc"]["per_class"].items()
    }
    return MetricRecord({name: float(value) for name, value in (pairs | areas).items()})

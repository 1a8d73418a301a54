"""Metrics over the rounds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from feddraw.analysis import plots
from feddraw.report.blocks import Block, Gallery, Heading, Picture
from feddraw.report.statistics import Report
from feddraw.text import slug

ON_SPLIT = {
    "validation": "On validation images, on which thresholds (and kept models) are chosen.",
    "test": "On test images, for information only: nothing was chosen on them.",
}


def section(report: Report, scenario: str) -> Iterator[Block]:
    by_split: dict[str, list[Picture]] = {"validation": [], "test": []}
    for split, pictures in by_split.items():
        for metric in report.metrics:
            pictures.extend(_curve_picture(report, scenario, split, metric))
    if not any(by_split.values()):
        return
    note = " Mean over the seeds that all methods have; shaded from the lowest to the highest. "
    if len(report.shown) > plots.MOST_LINES_IN_PANEL:
        note += (
            f"In panels with many methods, the thin line is {report.focus}; low first rounds"
            " may be cut off."
        )
    yield Heading(f"Over the rounds in {scenario}", 3)
    for split, pictures in by_split.items():
        if pictures:
            yield Gallery(pictures, f"{ON_SPLIT[split]}{note.rstrip()}")


def _curve_picture(report: Report, scenario: str, split: str, metric: str) -> Iterator[Picture]:
    """One metric on one split, where it was evaluated in more than one round."""
    means: dict[str, list[float]] = {}
    spread: dict[str, tuple[list[float], list[float]]] = {}
    for method in report.shown:
        recorded = [run.curve(split, metric) for run in report.paired_runs(scenario, method)]
        curves = [
            curve
            for curve in recorded
            if np.isfinite(curve).sum() > 1 and len(curve) == len(recorded[0])
        ]
        if curves:
            means[method] = np.mean(curves, axis=0).tolist()
        if len(curves) > 1:
            spread[method] = np.min(curves, axis=0).tolist(), np.max(curves, axis=0).tolist()
    if not means:
        return
    label = f"{split} {report.metrics[metric]}"
    figure = plots.curve_figure(
        means, focus=report.focus, order=report.shown, spread=spread, label=label
    )
    words = f"Macro {label} of each method by round"
    yield Picture(f"{slug(scenario)}-{split}-{metric}", figure, words)

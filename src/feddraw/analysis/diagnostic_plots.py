"""Figures of a diagnostic test: reliability, precision and recall, decision curves, and forest
plots by site and subgroup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from feddraw.analysis.diagnostic_measures import Measured, ReliabilityBin
from feddraw.analysis.palette import MUTED, SERIES
from feddraw.analysis.plots import LINE_GREY, Floats, draw_legend, line_look, short_label

SMALLEST_SQUARE, LARGEST_SQUARE = 3.5, 9.0  # sides in a forest plot, in points
HISTOGRAM_BINS = 20
LEAST_RECALL = 0.05  # from which on a curve of precision decides how high its panel is
HISTOGRAM_SHARE = 0.14  # of the panel's height, of the bar of the fullest bin


def draw_reliability(
    axes: Axes,
    bins: Mapping[str, Sequence[ReliabilityBin]],
    scores: Floats,
    order: Sequence[str],
) -> None:
    """Share of positive images over the mean score, by bin and method; at the bottom, how the
    scores of the first method are distributed. The axes end where the data end.
    """
    every = [each for of_method in bins.values() for each in of_method]
    top = min(1.0, 1.1 * max(max(each.mean_score, each.share) for each in every))
    counts, edges = np.histogram(scores, HISTOGRAM_BINS, (0, top))
    heights = HISTOGRAM_SHARE * top * counts / max(1, counts.max())
    axes.bar(edges[:-1], heights, np.diff(edges), align="edge", color=LINE_GREY, alpha=0.5)
    axes.plot([0, top], [0, top], color=LINE_GREY, linewidth=0.8, zorder=0)
    for name, of_method in bins.items():
        axes.plot(
            [each.mean_score for each in of_method],
            [each.share for each in of_method],
            label=short_label(name),
            linewidth=1.2,
            markersize=4,
            **line_look(order.index(name)),
        )
    axes.set(xlabel="mean score", ylabel="share of positives", xlim=(0, top), ylim=(0, top))
    axes.set_aspect("equal")
    draw_legend(axes)


def draw_precision_recall(
    axes: Axes,
    curves: Mapping[str, tuple[Floats, Floats]],
    prevalence: float,
    order: Sequence[str],
) -> None:
    """Precision over recall by method, and the prevalence, which a score of no use would give."""
    highest = prevalence
    for name, (recall, precision) in curves.items():
        look = line_look(order.index(name)) | {"markevery": [len(recall) // 2], "markersize": 4}
        axes.step(recall, precision, where="pre", label=short_label(name), linewidth=1.2, **look)
        # The first few images say little, and would press a rare finding's curve to the bottom.
        highest = max(highest, float(precision[recall >= LEAST_RECALL].max(initial=0)))
    top = min(1.01, 1.3 * highest)
    axes.axhline(prevalence, color=LINE_GREY, linewidth=0.8, zorder=0)
    axes.annotate(
        f"prevalence {prevalence:.1%}",
        (1.0, prevalence),
        xytext=(0, -3),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=8,
    )
    axes.set(
        xlabel="recall (sensitivity)",
        ylabel="precision (PPV)",
        xlim=(-0.01, 1.01),
        ylim=(-0.03 * top, top),
    )
    draw_legend(axes)


def draw_decision_curves(
    axes: Axes,
    thresholds: Sequence[float],
    net_benefits: Mapping[str, Sequence[Measured]],
    all_positive: Sequence[float],
    prevalence: float,
    order: Sequence[str],
) -> None:
    """Net benefit over the threshold probability by method, with the interval of the first; and of
    calling every image positive, or none.
    """
    for place, (name, benefits) in enumerate(net_benefits.items()):
        look = line_look(order.index(name)) | {"markevery": max(1, len(thresholds) // 6)}
        values = [each.value for each in benefits]
        axes.plot(thresholds, values, label=short_label(name), linewidth=1.2, markersize=4, **look)
        if not place:
            lows = [each.low for each in benefits]
            highs = [each.high for each in benefits]
            axes.fill_between(thresholds, lows, highs, color=look["color"], alpha=0.15, linewidth=0)
    axes.plot(thresholds, all_positive, color=LINE_GREY, linewidth=1.0, zorder=0)
    axes.axhline(0, color=LINE_GREY, linewidth=1.0, zorder=0)
    axes.annotate(
        "call all",
        (thresholds[0], all_positive[0]),
        xytext=(6, 2),
        textcoords="offset points",
        fontsize=8,
    )
    axes.annotate(
        "call none",
        (thresholds[-1], 0),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        fontsize=8,
    )
    values = [each.value for benefits in net_benefits.values() for each in benefits]
    highest = max(all_positive[0], prevalence / 2, *values)
    axes.set(
        xlabel="threshold probability",
        ylabel="net benefit per image",
        ylim=(-0.35 * highest, 1.25 * highest),
    )
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.margins(x=0.02)
    draw_legend(axes)


@dataclass(frozen=True)
class ForestRow:
    """A part of the images with its measure; without one, a heading above the parts."""

    name: str
    measured: Measured | None = None
    images: int = 0
    few: bool = False  # too few images of a label for the interval to say much


def forest_height(rows: int) -> float:
    """Inches of the panel."""
    return 0.9 + 0.22 * rows


def draw_forest(axes: Axes, rows: Sequence[ForestRow], overall: float | None) -> None:
    """A square and an interval per part, below the heading of its grouping; a line at the value of
    all images.
    """
    most = max((row.images for row in rows), default=0) or 1
    middle = 0.0 if overall is None else overall
    for place, row in enumerate(rows):
        if row.measured is None:
            continue
        if not row.measured.defined:
            axes.text(middle, place, " undefined", va="center", fontsize=8, color=MUTED)
            continue
        if math.isfinite(row.measured.low):
            ends = [row.measured.low, row.measured.high]
            axes.plot(ends, [place, place], color=SERIES[0], linewidth=1.3)
        side = SMALLEST_SQUARE + (LARGEST_SQUARE - SMALLEST_SQUARE) * math.sqrt(row.images / most)
        fill = "white" if row.few else SERIES[0]
        axes.plot(
            row.measured.value,
            place,
            marker="s",
            markersize=side,
            markerfacecolor=fill,
            markeredgecolor=SERIES[0],
        )
    if overall is not None:
        axes.axvline(overall, color=LINE_GREY, linewidth=0.9, zorder=0)
    axes.set_yticks(range(len(rows)), [short_label(row.name) for row in rows], fontsize=8)
    for row, tick in zip(rows, axes.get_yticklabels(), strict=True):
        tick.set_fontweight("bold" if row.measured is None else "normal")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5))

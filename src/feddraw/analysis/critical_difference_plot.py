"""Demšar's diagram: average ranks on a line, and which methods do not differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from feddraw.analysis.plots import figure_style

if TYPE_CHECKING:
    from feddraw.analysis.statistics import Comparison


def draw_critical_difference(
    axes: Axes, average_ranks: Mapping[str, float], groups: Sequence[Sequence[str]], cd: float
) -> None:
    """Demšar's diagram: average ranks on a line, best on the left; a bar joins methods that do not
    differ.

    One name per line, so that none covers another: the better half on the left, the others on the
    right.
    """
    methods = sorted(average_ranks, key=lambda name: average_ranks[name])
    right = max(float(len(methods)), 1 + cd)
    _draw_rank_axis(axes, len(methods), right, cd)
    bars = _bar_levels([(average_ranks[group[0]], average_ranks[group[-1]]) for group in groups])
    for low, high, level in bars:
        depth = 0.7 + 0.5 * level
        ends = [low - 0.04, high + 0.04]
        axes.plot(ends, [depth, depth], color="black", linewidth=4, solid_capstyle="butt")
    top = 1.6 + 0.5 * max((level for _, _, level in bars), default=-1)
    better = (len(methods) + 1) // 2
    for line, name in enumerate(methods[:better]):
        rank = average_ranks[name]
        depth = top + line
        _draw_rank_line(axes, rank, 0.9, depth)
        axes.text(0.9 - 0.08, depth, f"{name}  {rank:.2f}", ha="right", va="center", fontsize=9)
    edge = right + 0.1
    for line, name in enumerate(reversed(methods[better:])):
        rank = average_ranks[name]
        depth = top + line
        _draw_rank_line(axes, rank, edge, depth)
        axes.text(edge + 0.08, depth, f"{rank:.2f}  {name}", ha="left", va="center", fontsize=9)
    axes.set(xlim=(0.9, edge), ylim=(top + better - 0.5, -2.4))
    axes.axis("off")


def _draw_rank_line(axes: Axes, rank: float, edge: float, depth: float) -> None:
    """From a rank on the axis down, and then to the edge where its method is named."""
    axes.plot([rank, rank, edge], [0, depth, depth], color="0.35", linewidth=0.9, clip_on=False)


def _draw_rank_axis(axes: Axes, methods: int, right: float, cd: float) -> None:
    """The ranks from 1, and above them a bar as long as the critical difference."""
    axes.plot([1, right], [0, 0], color="black", linewidth=1.2)
    for place in range(1, methods + 1):
        axes.plot([place, place], [0, -0.2], color="black", linewidth=1)
        axes.text(place, -0.35, str(place), ha="center", va="bottom", fontsize=8)
    axes.plot(
        [1, 1, 1, 1 + cd, 1 + cd, 1 + cd],
        [-1.5, -1.8, -1.65, -1.65, -1.5, -1.8],
        color="black",
        linewidth=1,
    )
    axes.text(
        1 + cd + 0.12, -1.65, f"critical difference {cd:.2f}", ha="left", va="center", fontsize=8
    )


def _bar_levels(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float, int]]:
    """Each bar on the first level where it touches no other."""
    ends: list[float] = []
    placed = []
    for low, high in sorted(spans):
        level = next((i for i, end in enumerate(ends) if low > end + 0.15), len(ends))
        ends[level : level + 1] = [high]
        placed.append((low, high, level))
    return placed


def critical_difference_figure(comparisons: Mapping[str, Comparison]) -> Figure:
    """One diagram below another: average ranks, groups and critical difference of each comparison,
    by its name.
    """
    lines = [
        len(comparison.average_ranks) / 2 + 0.5 * len(comparison.groups)
        for comparison in comparisons.values()
    ]
    height = (1.5 + 0.27 * max(lines)) * len(comparisons)
    with figure_style():
        figure = Figure(figsize=(7, height), layout="constrained")
        rows = figure.subplots(len(comparisons), squeeze=False)[:, 0]
        for axes, (name, comparison) in zip(rows, comparisons.items(), strict=True):
            draw_critical_difference(
                axes, comparison.average_ranks, comparison.groups, comparison.difference
            )
            title = (
                f"{name}; a bar joins methods that do not differ significantly at alpha"
                f" {comparison.alpha:g}"
            )
            axes.set_title(title, loc="left", fontsize=10)
    return figure

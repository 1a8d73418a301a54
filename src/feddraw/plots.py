"""Figures: from a table to ink, on the axes they are given. Readable in grey and by colour-blind readers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from feddraw.errors import UserError

# Okabe and Ito's colours, told apart by colour-blind readers; line styles and markers tell them apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

mpl.rcParams.update(
    {"svg.fonttype": "none", "svg.hashsalt": "feddraw", "axes.spines.top": False, "axes.spines.right": False}
)

Series = Mapping[str, Sequence[float]]  # name to a value a round


def draw_lines(axes: Axes, series: Series) -> None:
    """One line a series over the rounds."""
    look = zip(cycle(COLOURS), cycle(STYLES), cycle(MARKERS), strict=False)
    for (name, values), (colour, style, marker) in zip(series.items(), look, strict=False):
        axes.plot(
            range(len(values)), values, style, color=colour, label=name, linewidth=1.4, marker=marker, markersize=3.5
        )
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)


def draw_weights(axes: Axes, weights: Series, *, title: str = "") -> None:
    """Weights of each client over the rounds, with the level at which all count the same."""
    draw_lines(axes, weights)
    axes.axhline(1 / len(weights), color="0.6", linewidth=0.8, zorder=0)
    axes.text(
        1.01, 1 / len(weights), "equal", transform=axes.get_yaxis_transform(), fontsize=7, color="0.4", va="center"
    )
    axes.set_ylim(bottom=0)
    axes.set_ylabel("weight")
    axes.set_title(title, loc="left", fontsize=10)
    if len(weights) <= 12:
        axes.legend(fontsize=7, frameon=False, ncols=2 if len(weights) > 5 else 1)


def draw_schedule(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The two schedules, the reputations and the weights of `feddraw weights`."""
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    schedules, reputations, weights = figure.subplots(1, 3)
    names = [client["client"] for client in rows[0]["clients"]]

    def by_client(part: str) -> dict[str, list[float]]:
        return {name: [row["clients"][i][part] for row in rows] for i, name in enumerate(names)}

    beta = [float("nan") if row["beta"] is None else row["beta"] for row in rows]
    draw_lines(schedules, {"gamma: trust in size": [row["gamma"] for row in rows], "beta: sharpness": beta})
    schedules.set_title("the two schedules", loc="left", fontsize=10)
    schedules.set_ylim(bottom=0)
    schedules.legend(fontsize=7, frameon=False)
    draw_lines(reputations, by_client("reputation"))
    reputations.set_title("reputation", loc="left", fontsize=10)
    draw_weights(weights, by_client("weight"), title="weight")
    return figure


def draw_critical_difference(
    axes: Axes, average_ranks: Mapping[str, float], groups: Sequence[Sequence[str]], cd: float
) -> None:
    """Demšar's diagram: average ranks on a line, best to the left; a bar joins methods that are not told apart.

    A name a line, so that none can cover another: the better half stands to the left, the others to the right.
    """
    methods = sorted(average_ranks, key=lambda name: average_ranks[name])
    right = max(float(len(methods)), 1 + cd)
    _draw_rank_axis(axes, len(methods), right, cd)
    bars = _levels([(average_ranks[group[0]], average_ranks[group[-1]]) for group in groups])
    for low, high, level in bars:
        axes.plot([low - 0.04, high + 0.04], [0.7 + 0.5 * level] * 2, color="black", linewidth=4, solid_capstyle="butt")
    top = 1.6 + 0.5 * max((level for *_, level in bars), default=-1)
    better = (len(methods) + 1) // 2
    for line, name in enumerate([*methods[:better], *reversed(methods[better:])]):
        left = line < better
        edge, depth = (0.9, top + line) if left else (right + 0.1, top + line - better)
        axes.plot([average_ranks[name]] * 2 + [edge], [0, depth, depth], color="0.35", linewidth=0.9, clip_on=False)
        label = f"{name}  {average_ranks[name]:.2f}" if left else f"{average_ranks[name]:.2f}  {name}"
        axes.text(
            edge + (-0.08 if left else 0.08), depth, label, ha="right" if left else "left", va="center", fontsize=9
        )
    axes.set(xlim=(0.9, right + 0.1), ylim=(top + better - 0.5, -2.4))
    axes.axis("off")


def _draw_rank_axis(axes: Axes, methods: int, right: float, cd: float) -> None:
    """The ranks from 1, and above them a bar as long as the critical difference."""
    axes.plot([1, right], [0, 0], color="black", linewidth=1.2)
    for place in range(1, methods + 1):
        axes.plot([place, place], [0, -0.2], color="black", linewidth=1)
        axes.text(place, -0.35, str(place), ha="center", va="bottom", fontsize=8)
    axes.plot([1, 1, 1, 1 + cd, 1 + cd, 1 + cd], [-1.5, -1.8, -1.65, -1.65, -1.5, -1.8], color="black", linewidth=1)
    axes.text(1 + cd + 0.12, -1.65, f"critical difference {cd:.2f}", ha="left", va="center", fontsize=8)


def _levels(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float, int]]:
    """Each bar on the first level where it touches no other."""
    ends: list[float] = []
    placed = []
    for low, high in sorted(spans):
        level = next((i for i, end in enumerate(ends) if low > end + 0.15), len(ends))
        ends[level : level + 1] = [high]
        placed.append((low, high, level))
    return placed


def critical_difference_figure(
    panels: Mapping[str, tuple[Mapping[str, float], Sequence[Sequence[str]], float]],
) -> Figure:
    """A diagram under another, each with its title: average ranks, groups and critical difference."""
    lines = max(len(ranks) / 2 + 0.5 * len(groups) for ranks, groups, _ in panels.values())
    figure = Figure(figsize=(7, (1.5 + 0.27 * lines) * len(panels)), layout="constrained")
    rows = figure.subplots(len(panels), squeeze=False)[:, 0]
    for axes, (title, (ranks, groups, cd)) in zip(rows, panels.items(), strict=True):
        draw_critical_difference(axes, ranks, groups, cd)
        axes.set_title(title, loc="left", fontsize=10)
    return figure


def save(figure: Figure, path: Path) -> None:
    """To a file, in the format of its ending; no time in it, so that equal figures are equal files."""
    formats = ("png", "svg", "pdf")
    if path.suffix.lower().removeprefix(".") not in formats:
        raise UserError(f"cannot draw to {path}: the name must end in .{', .'.join(formats)}")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"cannot write {path}: {path.parent} is not a folder that you may write to")
    metadata = (
        {"Date": None}
        if path.suffix.lower() == ".svg"
        else {"CreationDate": None}
        if path.suffix.lower() == ".pdf"
        else {}
    )
    figure.savefig(path, dpi=150, metadata=metadata)

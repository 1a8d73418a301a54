"""Figures: from a table to ink, on the axes they are given.

Readable in grey and by colour-blind readers.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from feddraw.analysis.palette import INK, MUTED, SERIES, dark_drawing, luminance
from feddraw.data.dataset import Labels
from feddraw.data.scenarios.partition import Partition
from feddraw.data.scenarios.skew_measures import label_mixes
from feddraw.errors import UserError
from feddraw.system.file_writing import write_whole
from feddraw.text import grouped, safe_line, safe_text

if TYPE_CHECKING:
    from feddraw.analysis.paired_differences import Difference
    from feddraw.analysis.statistics import Comparison

LINE_STYLES = ("-", "--", "-.", ":")  # with markers they tell lines apart in grey
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

FIGURE_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "feddraw",
    "text.parse_math": False,  # a client may be called $x$
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "legend.fontsize": 8,
    "legend.borderaxespad": 0,
    "legend.frameon": False,
}

Floats = NDArray[np.float64]
Series = Mapping[str, Sequence[float]]  # name to one value per round
Spread = Mapping[
    str, tuple[Sequence[float], Sequence[float]]
]  # name to the lowest and highest of its repeats
MOST_LINES_IN_PANEL = (
    5  # more lines than this, with their shades, cannot be distinguished in one panel
)
MOST_NAMED_ROWS = 30  # rows from which on names and numbers cannot be read
PANEL_INCHES = (4.2, 3.1)  # inches: one panel, wide enough for a phone


def figure_style() -> AbstractContextManager[None]:
    """Figures that are made and saved within have our look; a user's own settings of matplotlib
    stay as they are.
    """
    return mpl.rc_context(FIGURE_STYLE)


def panel_figure(
    width: float = PANEL_INCHES[0], height: float = PANEL_INCHES[1]
) -> tuple[Figure, Axes]:
    """A figure of one panel."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def lay_out_figure(figure: Figure) -> None:
    """Put the parts in their places for good: saving does not reckon them again, nor draw once more
    for that.
    """
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
    with mpl.rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
        figure.set_layout_engine(None)


def short_label(name: str, length: int = 22) -> str:
    """A name that does not push the drawing off its panel."""
    name = safe_line(" ".join(name.split()))
    return name if len(name) <= length else f"{name[: length - 1]}…"


def line_look(place: int) -> dict[str, Any]:
    """Colour, line and marker of the place-th series: no two of the first fifty-six are alike."""
    return {
        "color": SERIES[place % len(SERIES)],
        "linestyle": LINE_STYLES[place % len(LINE_STYLES)],
        "marker": MARKERS[place % len(MARKERS)],
    }


# ---------------------------------------------------------------------------------- over the rounds


def draw_lines(
    axes: Axes, series: Series, *, order: Sequence[str] = (), spread: Spread | None = None
) -> None:
    """One line per series over the rounds; `order` gives each name the look it has in other
    figures.
    """
    places = list(order) or list(series)
    for name, values in series.items():
        looks = line_look(places.index(name))
        axes.plot(
            range(len(values)),
            values,
            label=short_label(name),
            linewidth=1.4,
            markersize=3.5,
            **looks,
        )
        if spread and name in spread:
            axes.fill_between(
                range(len(values)), *spread[name], color=looks["color"], alpha=0.15, linewidth=0
            )
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)


def draw_legend(axes: Axes, lines: Sequence[Line2D] = ()) -> None:
    """The names below the axes, where they cover no line; left out where they are too many to be
    distinguished.
    """
    shown = lines or [line for line in axes.lines if line.get_marker() not in ("None", "")]
    if 1 < len(shown) <= 12:
        labels = [str(line.get_label()) for line in shown]
        columns = max(1, min(len(shown), 56 // (max(map(len, labels)) + 6)))
        below = axes.transAxes + ScaledTranslation(
            0, -0.42, axes.figure.dpi_scale_trans
        )  # of ticks and their label
        axes.legend(
            shown,
            labels,
            ncols=columns,
            loc="upper center",
            bbox_to_anchor=(0.5, 0),
            bbox_transform=below,
        )


def draw_weights(
    axes: Axes, weights: Series, *, title: str = "", spread: Spread | None = None
) -> None:
    """Weights of each client over the rounds, with the level at which all count the same."""
    draw_lines(axes, weights, spread=spread)
    equal = 1 / len(weights)
    axes.axhline(equal, color="0.6", linewidth=0.8, zorder=0)
    axes.text(
        1.01,
        equal,
        "equal",
        transform=axes.get_yaxis_transform(),
        fontsize=7,
        color=MUTED,
        va="center",
    )
    axes.set_ylim(bottom=0)
    axes.set_ylabel("weight")
    axes.set_title(title)
    draw_legend(axes)


def draw_deviation(
    axes: Axes, weights: Series, sizes: Mapping[str, float], *, title: str = ""
) -> bool:
    """How far clients of the same size are from the mean weight of their size; False where no two
    are alike.
    """
    groups = grouped((sizes[name], name) for name in weights)
    alike = {name: names for names in groups.values() if len(names) > 1 for name in names}
    if not alike:
        return False
    means = {
        name: np.mean([weights[other] for other in names], axis=0) for name, names in alike.items()
    }
    draw_lines(
        axes, {name: np.asarray(weights[name]) - means[name] for name in alike}, order=list(weights)
    )
    axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
    reach = max(1e-9, *(abs(value) for value in axes.get_ylim()))
    axes.set_ylim(-reach, reach)
    axes.ticklabel_format(axis="y", scilimits=(-2, 2), useMathText=False)
    axes.set_ylabel("weight minus mean of its size")
    axes.set_title(title)
    draw_legend(axes)
    return True


def curve_figure(
    series: Series, *, focus: str, order: Sequence[str], spread: Spread, label: str
) -> Figure:
    """A metric over the rounds: one panel for a few methods; for many one each, with the mean of
    the one in focus.
    """
    if len(series) <= MOST_LINES_IN_PANEL:
        figure, axes = panel_figure(6.4, 3.6)
        draw_lines(axes, series, order=order, spread=spread)
        axes.set_ylabel(label)
        draw_legend(axes)
        return figure
    rows = math.ceil(len(series) / 3)
    figure = Figure(figsize=(6.4, 0.4 + 1.6 * rows), layout="constrained")
    grid = list(figure.subplots(rows, 3, sharex=True, sharey=True).flat)
    for (name, values), axes in zip(series.items(), grid, strict=False):
        if name != focus and focus in series:
            axes.plot(
                range(len(series[focus])),
                series[focus],
                color=INK,
                linewidth=1.0,
                label=short_label(focus),
            )
        draw_lines(axes, {name: values}, order=order, spread=spread)
        axes.set_title(short_label(name), fontsize=9)
        axes.label_outer()
    for axes in grid[len(series) :]:
        axes.set_visible(False)
    for axes in grid[
        len(series) - 3 : len(series)
    ]:  # the lowest of each column, where the last row is short
        axes.xaxis.set_tick_params(labelbottom=True)
        axes.set_xlabel("round")
    grid[0].set_ylim(*_axis_range_of_late_rounds(series, spread))
    figure.supylabel(label, fontsize="medium")
    return figure


def _axis_range_of_late_rounds(series: Series, spread: Spread) -> tuple[float, float]:
    """The range of all but the first fifth of the rounds, which rise from chance and would press
    the rest together.
    """
    lines = [*series.values(), *(end for ends in spread.values() for end in ends)]
    late = np.concatenate([np.asarray(line)[len(line) // 5 :] for line in lines])
    if not np.isfinite(late).any():
        return 0.0, 1.0
    low, high = float(np.nanmin(late)), float(np.nanmax(late))
    room = 0.05 * (high - low) or 0.01
    return low - room, high + room


def draw_schedules(axes: Axes, gamma: Sequence[float], beta: Sequence[float]) -> None:
    """Trust in size and sharpness over the rounds, each with its own scale."""
    draw_lines(axes, {"gamma: trust in size": gamma})
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("gamma")
    right = axes.twinx()
    right.spines["right"].set_visible(True)
    right.plot(
        range(len(beta)),
        beta,
        label="beta: sharpness",
        linewidth=1.4,
        markersize=3.5,
        **line_look(1),
    )
    right.set_ylim(bottom=0)
    right.set_ylabel("beta")
    draw_legend(axes, [*axes.lines, *right.lines])
    axes.set_title("the two schedules")


def schedule_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The two schedules, the reputations and the weights of `feddraw weights`."""
    names = [client["client"] for client in rows[0]["clients"]]

    def by_client(part: str) -> dict[str, list[float]]:
        return {name: [row["clients"][i][part] for row in rows] for i, name in enumerate(names)}

    beta = [float("nan") if row["beta"] is None else row["beta"] for row in rows]
    with figure_style():
        figure = Figure(figsize=(10, 3.2), layout="constrained")
        schedules, reputations, weights = figure.subplots(1, 3)
        draw_schedules(schedules, [row["gamma"] for row in rows], beta)
        draw_lines(reputations, by_client("reputation"))
        reputations.set_title("reputation")
        draw_weights(weights, by_client("weight"), title="weight")
    return figure


# --------------------------------------------------------------------------------- data and results


def draw_sizes(axes: Axes, sizes: Mapping[str, float]) -> None:
    """Images at each client, the first on top."""
    names = list(sizes)
    bars = axes.barh(range(len(names)), list(sizes.values()), color=SERIES[0], height=0.7)
    if len(names) <= MOST_NAMED_ROWS:
        axes.bar_label(
            bars, labels=[f"{size:,.0f}" for size in sizes.values()], padding=3, fontsize=7
        )
        axes.set_yticks(range(len(names)), [short_label(name) for name in names], fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.margins(x=0.15)
    axes.set_xlabel("images")


def draw_heat_map(
    axes: Axes,
    values: Floats,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    percent: bool = False,
) -> None:
    """A number in every cell, darker where it is larger; a dash where it is undefined."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    margin = high - low or 1.0
    shades = np.ma.masked_invalid(values)
    mesh = axes.pcolormesh(
        shades, cmap="Blues", vmin=low - 0.15 * margin, vmax=high + 0.25 * margin
    )
    if len(rows) <= MOST_NAMED_ROWS:
        _draw_heat_map_numbers(axes, mesh, values, percent)
        axes.set_yticks(
            np.arange(len(rows)) + 0.5, [short_label(name) for name in rows], fontsize=8
        )
    names = [short_label(name, 14) for name in columns]
    axes.set_xticks(np.arange(len(columns)) + 0.5, names, rotation=30, ha="right", fontsize=7)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _draw_heat_map_numbers(axes: Axes, mesh: QuadMesh, values: Floats, percent: bool) -> None:
    for (row, column), value in np.ndenumerate(values):
        text = (
            "–"
            if not np.isfinite(value)
            else f"{value:.0%}"
            if percent
            else f"{value:.3f}".lstrip("0")
        )
        # near black or near white, whichever is seen better; both stay as they are where a page
        # turns ink light
        ink = (
            "#010101"
            if not np.isfinite(value) or luminance(mesh.to_rgba(np.array(value))) > 0.18
            else "#fefefe"
        )
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7, color=ink)


def draw_roc(
    axes: Axes,
    curves: Mapping[str, tuple[Floats, Floats]],
    points: Mapping[str, tuple[float, float]],
    order: Sequence[str],
) -> None:
    """Sensitivity over false alarms; a large marker where the threshold chosen on validation data
    lands.
    """
    for name, (alarms, sensitivity) in curves.items():
        looks = line_look(order.index(name))
        marker = looks.pop("marker")
        axes.plot(alarms, sensitivity, linewidth=1.2, **looks)
        at_threshold = {"marker": marker, "color": looks["color"], "linestyle": "none"}
        axes.plot(*points[name], markersize=7, label=short_label(name), **at_threshold)
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, zorder=0)
    axes.set(
        xlabel="false alarms (1 - specificity)",
        ylabel="sensitivity",
        xlim=(-0.01, 1.01),
        ylim=(-0.01, 1.01),
    )
    axes.set_aspect("equal")
    draw_legend(axes)


def draw_gains(axes: Axes, gains: Mapping[str, tuple[float, float, float]], label: str) -> None:
    """What each client gains, with an interval; to the right of the line it gains."""
    for row, (estimate, low, high) in enumerate(gains.values()):
        axes.plot([low, high], [row, row], color=SERIES[0], linewidth=1.6)
        axes.plot(estimate, row, marker="o", color=SERIES[0], markersize=5)
    axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(gains)), [short_label(name) for name in gains], fontsize=8)
    axes.set_ylim(len(gains) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel(label)


def differences_figure(found: Mapping[str, Sequence[Difference]], reference: str) -> Figure:
    """Methods minus the reference: one row of panels per value, one panel per scenario and one for
    all.
    """
    everything = [one for of in found.values() for one in of]
    scenarios = sorted(
        dict.fromkeys(one.scenario for one in everything), key=lambda name: not name
    )  # "" comes last
    methods = list(dict.fromkeys(one.method for one in everything))
    size = 1.4 + 1.8 * len(scenarios), (0.7 + 0.22 * len(methods)) * len(found)
    with figure_style():
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(found), len(scenarios), squeeze=False, sharex="row", sharey=True)
        for row, of in zip(grid, found.values(), strict=True):
            for axes, scenario in zip(row, scenarios, strict=True):
                by_method = {one.method: one for one in of if one.scenario == scenario}
                draw_gains(axes, {m: _difference_with_ends(by_method.get(m)) for m in methods}, "")
                axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
                axes.tick_params(axis="x", labelsize=7)
                axes.set_title(scenario.replace(",", "\n") or "all", fontsize=8)
        figure.supxlabel(f"{', '.join(found)} minus that of {reference}", fontsize=9)
    return figure


def _difference_with_ends(one: Difference | None) -> tuple[float, float, float]:
    """Estimate and interval; nothing is drawn of what is not there."""
    return (
        (one.mean, one.low, one.high)
        if one is not None and math.isfinite(one.low)
        else (math.nan,) * 3
    )


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
        axes.plot(
            [low - 0.04, high + 0.04],
            [0.7 + 0.5 * level] * 2,
            color="black",
            linewidth=4,
            solid_capstyle="butt",
        )
    top = 1.6 + 0.5 * max((level for *_, level in bars), default=-1)
    better = (len(methods) + 1) // 2
    for line, name in enumerate([*methods[:better], *reversed(methods[better:])]):
        left = line < better
        edge, depth = (0.9, top + line) if left else (right + 0.1, top + line - better)
        axes.plot(
            [average_ranks[name]] * 2 + [edge],
            [0, depth, depth],
            color="0.35",
            linewidth=0.9,
            clip_on=False,
        )
        label = (
            f"{name}  {average_ranks[name]:.2f}" if left else f"{average_ranks[name]:.2f}  {name}"
        )
        start, side = (edge - 0.08, "right") if left else (edge + 0.08, "left")
        axes.text(start, depth, label, ha=side, va="center", fontsize=9)
    axes.set(xlim=(0.9, right + 0.1), ylim=(top + better - 0.5, -2.4))
    axes.axis("off")


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


def critical_difference_figure(found: Mapping[str, Comparison]) -> Figure:
    """One diagram below another: average ranks, groups and critical difference of each comparison,
    by its name.
    """
    lines = max(len(one.average_ranks) / 2 + 0.5 * len(one.groups) for one in found.values())
    with figure_style():
        figure = Figure(figsize=(7, (1.5 + 0.27 * lines) * len(found)), layout="constrained")
        rows = figure.subplots(len(found), squeeze=False)[:, 0]
        for axes, (name, one) in zip(rows, found.items(), strict=True):
            draw_critical_difference(axes, one.average_ranks, one.groups, one.difference)
            title = (
                f"{name}; a bar joins methods that do not differ significantly at alpha"
                f" {one.alpha:g}"
            )
            axes.set_title(title, loc="left", fontsize=10)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """To a file, in the format of its ending; no time in it, so that equal figures are
    equal files.
    """
    undated: dict[str, dict[str, Any]] = {
        ".png": {},
        ".svg": {"Date": None},
        ".pdf": {"CreationDate": None},
    }
    kind = path.suffix.lower()
    if kind not in undated:
        raise UserError(f"cannot draw to {path}: the name must end in {', '.join(undated)}")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"cannot write {path}: {path.parent} is not a folder that you may write to")
    drawn = io.BytesIO()
    with figure_style():
        figure.savefig(drawn, format=kind[1:], dpi=150, metadata=undated[kind])
    content = drawn.getvalue()
    if kind == ".svg":  # one with a control character in it is no SVG
        content = (
            safe_text(content.decode()).replace("<defs>", f"{dark_drawing()}\n <defs>", 1).encode()
        )
    write_whole(path, content)


HATCHES = ("", "///", "", "...", "", "\\\\\\")


def partition_figure(partition: Partition, labels: Labels) -> Figure:
    """Client sizes, and beside them label mixes as stacked bars."""
    with figure_style():
        figure = Figure(figsize=(9, 1.6 + 0.35 * len(partition.shards)), layout="constrained")
        sizes, mix = figure.subplots(1, 2, sharey=True, width_ratios=(2, 3))
        draw_sizes(sizes, {shard.client: len(shard) for shard in partition.shards})
        _draw_label_mixes(partition, labels, mix)
        figure.suptitle(
            f"{partition.scenario}: {partition.sizes.sum():,} images at {len(partition.shards)}"
            " clients"
        )
    return figure


def _draw_label_mixes(partition: Partition, labels: Labels, axes: Axes) -> None:
    """Colours of one scale from dark to light, and hatches, so that neighbours differ in grey and
    to every eye.
    """
    mixes = label_mixes(partition, labels)
    parts = (*labels.findings, "none")
    shades = [*colormaps["cividis"](np.linspace(0.0, 0.9, len(parts) - 1)), "white"]
    start = np.zeros(len(mixes))
    for column, (part, shade) in enumerate(zip(parts, shades, strict=True)):
        edge = "white" if column < len(parts) / 2 else "0.2"  # hatches are drawn in it
        hatch = HATCHES[column % len(HATCHES)] if part != "none" else ""
        rows, share = range(len(mixes)), 100 * mixes[:, column]
        axes.barh(
            rows,
            share,
            left=start,
            height=0.7,
            color=shade,
            edgecolor=edge,
            hatch=hatch,
            lw=0.5,
            label=part,
        )
        start += share
    axes.set_xlim(0, 100.4)
    axes.set_xlabel("% of positives, with images of no finding as “none”")
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize="small"
    )

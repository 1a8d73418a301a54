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
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from feddraw.analysis.palette import INK, MUTED, SERIES, dark_drawing, luminance
from feddraw.errors import UserError
from feddraw.system.file_writing import write_whole
from feddraw.text import grouped, safe_line, safe_text

if TYPE_CHECKING:
    from feddraw.analysis.paired_differences import Difference

# Metadata of each format without a time in it.
UNDATED: dict[str, dict[str, Any]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
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
    "legend.fontsize": 9,
    "legend.borderaxespad": 0,
    "legend.frameon": False,
}

Floats = NDArray[np.float64]
Series = Mapping[str, Sequence[float]]  # name to one value per round
# Name to the lowest and the highest of its repeats, by round.
Spread = Mapping[str, tuple[Sequence[float], Sequence[float]]]
MOST_LINES_IN_PANEL = 5  # more, with their shades, cannot be distinguished
MOST_NAMES_IN_LEGEND = 12
MOST_NAMED_ROWS = 30  # rows from which on names and numbers cannot be read
PANEL_WIDTH, PANEL_HEIGHT = 4.2, 3.1  # inches: one panel, wide enough for a phone
LINE_GREY = "0.6"  # of lines that are there for orientation


def figure_style() -> AbstractContextManager[None]:
    """Figures that are made and saved within have our look; a user's own settings of matplotlib
    stay as they are.
    """
    return mpl.rc_context(FIGURE_STYLE)


def panel_figure(width: float = PANEL_WIDTH, height: float = PANEL_HEIGHT) -> tuple[Figure, Axes]:
    """A figure of one panel, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def lay_out_figure(figure: Figure) -> None:
    """Put the parts in their places for good: saving does not compute them again, nor draw once
    more for that.
    """
    engine = figure.get_layout_engine()
    if engine is not None:
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
        look = line_look(places.index(name))
        _draw_line(axes, values, name, look)
        if spread and name in spread:
            lowest, highest = spread[name]
            rounds = range(len(values))
            axes.fill_between(rounds, lowest, highest, color=look["color"], alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)


def _draw_line(axes: Axes, values: Sequence[float], name: str, look: Mapping[str, Any]) -> None:
    rounds = range(len(values))
    axes.plot(rounds, values, label=short_label(name), linewidth=1.4, markersize=3.5, **look)


def draw_legend(axes: Axes, lines: Sequence[Line2D] = ()) -> None:
    """The names below the axes, where they cover no line; left out where they are too many to be
    distinguished.
    """
    shown = lines or [line for line in axes.lines if line.get_marker() not in ("None", "")]
    if not 1 < len(shown) <= MOST_NAMES_IN_LEGEND:
        return
    labels = [str(line.get_label()) for line in shown]
    longest = max(map(len, labels))
    columns = max(1, min(len(shown), 56 // (longest + 6)))
    # below the ticks and their label
    below = axes.transAxes + ScaledTranslation(0, -0.42, axes.figure.dpi_scale_trans)
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
    """Weights of each client over the rounds, with the level at which all are equal."""
    draw_lines(axes, weights, spread=spread)
    equal = 1 / len(weights)
    axes.axhline(equal, color=LINE_GREY, linewidth=0.8, zorder=0)
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
    deviations: dict[str, list[float]] = {}
    for clients in grouped((sizes[name], name) for name in weights).values():
        if len(clients) > 1:
            mean = np.mean([weights[client] for client in clients], axis=0)
            deviations |= {client: (weights[client] - mean).tolist() for client in clients}
    if not deviations:
        return False
    draw_lines(axes, deviations, order=list(weights))
    axes.axhline(0, color=LINE_GREY, linewidth=0.8, zorder=0)
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
        figure, axes = panel_figure(5.4, 3.2)
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
    lowest_of_columns = grid[len(series) - 3 : len(series)]  # the last row may be short
    for axes in lowest_of_columns:
        axes.xaxis.set_tick_params(labelbottom=True)
        axes.set_xlabel("round")
    grid[0].set_ylim(*_range_of_late_rounds(series, spread))
    figure.supylabel(label, fontsize="medium")
    return figure


def _range_of_late_rounds(series: Series, spread: Spread) -> tuple[float, float]:
    """The range of all but the first fifth of the rounds, which rise from chance and would press
    the rest together.
    """
    lines = [*series.values(), *(end for ends in spread.values() for end in ends)]
    late = np.concatenate([np.asarray(line)[len(line) // 5 :] for line in lines])
    if not np.isfinite(late).any():
        return 0.0, 1.0
    low = float(np.nanmin(late))
    high = float(np.nanmax(late))
    margin = 0.05 * (high - low) or 0.01
    return low - margin, high + margin


def draw_schedules(axes: Axes, gamma: Sequence[float], beta: Sequence[float]) -> None:
    """Trust in size and sharpness over the rounds, each with its own scale."""
    draw_lines(axes, {"gamma: trust in size": gamma})
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("gamma")
    right = axes.twinx()
    right.spines["right"].set_visible(True)
    _draw_line(right, beta, "beta: sharpness", line_look(1))
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
        name_rows(axes, names)
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
    low = float(finite.min()) if finite.size else 0.0
    high = float(finite.max()) if finite.size else 1.0
    reach = high - low or 1.0
    shades = np.ma.masked_invalid(values)
    mesh = axes.pcolormesh(shades, cmap="Blues", vmin=low - 0.15 * reach, vmax=high + 0.25 * reach)
    if len(rows) <= MOST_NAMED_ROWS:
        _write_numbers(axes, mesh, values, percent)
        axes.set_yticks(
            np.arange(len(rows)) + 0.5, [short_label(name) for name in rows], fontsize=8
        )
    names = [short_label(name, 14) for name in columns]
    axes.set_xticks(np.arange(len(columns)) + 0.5, names, rotation=30, ha="right", fontsize=7)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _write_numbers(axes: Axes, mesh: QuadMesh, values: Floats, percent: bool) -> None:
    # near black or near white, whichever is seen better; both stay as they are where a page turns
    # ink light
    black, white = "#010101", "#fefefe"
    for (row, column), value in np.ndenumerate(values):
        ink = black
        if not np.isfinite(value):
            text = "–"
        else:
            text = f"{value:.0%}" if percent else f"{value:.3f}".lstrip("0")
            if luminance(mesh.to_rgba(np.array(value))) <= 0.18:
                ink = white
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
        look = line_look(order.index(name))
        curve_look = look | {"marker": "None"}
        point_look = look | {"linestyle": "none"}
        axes.plot(alarms, sensitivity, linewidth=1.2, **curve_look)
        axes.plot(*points[name], markersize=7, label=short_label(name), **point_look)
    axes.plot([0, 1], [0, 1], color=LINE_GREY, linewidth=0.8, zorder=0)
    axes.set(
        xlabel="false alarms (1 - specificity)",
        ylabel="sensitivity",
        xlim=(-0.01, 1.01),
        ylim=(-0.01, 1.01),
    )
    axes.set_aspect("equal")
    draw_legend(axes)


def draw_gains(axes: Axes, gains: Mapping[str, tuple[float, float, float]], label: str) -> None:
    """What each client gains: estimate and ends of an interval; to the right of the line it
    gains.
    """
    for row, (estimate, low, high) in enumerate(gains.values()):
        axes.plot([low, high], [row, row], color=SERIES[0], linewidth=1.6)
        axes.plot(estimate, row, marker="o", color=SERIES[0], markersize=5)
    axes.axvline(0, color=LINE_GREY, linewidth=0.8, zorder=0)
    name_rows(axes, list(gains))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel(label)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """A name at every row, the first on top."""
    axes.set_yticks(range(len(names)), [short_label(name) for name in names], fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)


def differences_figure(by_column: Mapping[str, Sequence[Difference]], reference: str) -> Figure:
    """Methods minus the reference: one row of panels per column of values, one panel per scenario
    and one for all.
    """
    differences = [difference for of_column in by_column.values() for difference in of_column]
    scenarios = list(dict.fromkeys(difference.scenario for difference in differences))
    scenarios.sort(key=lambda name: not name)  # "", which is all together, comes last
    methods = list(dict.fromkeys(difference.method for difference in differences))
    width = 1.4 + 1.8 * len(scenarios)
    height = (0.7 + 0.22 * len(methods)) * len(by_column)
    with figure_style():
        figure = Figure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(
            len(by_column), len(scenarios), squeeze=False, sharex="row", sharey=True
        )
        for row, of_column in zip(grid, by_column.values(), strict=True):
            for axes, scenario in zip(row, scenarios, strict=True):
                here = [diff for diff in of_column if diff.scenario == scenario]
                draw_gains(axes, _gains_by_method(here, methods), "")
                axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
                axes.tick_params(axis="x", labelsize=7)
                axes.set_title(scenario.replace(",", "\n") or "all", fontsize=8)
        figure.supxlabel(f"{', '.join(by_column)} minus that of {reference}", fontsize=9)
    return figure


def _gains_by_method(
    differences: Sequence[Difference], methods: Sequence[str]
) -> dict[str, tuple[float, float, float]]:
    """Estimate and interval of every method; nothing is drawn of what is not there."""
    gains = dict.fromkeys(methods, (math.nan, math.nan, math.nan))
    for difference in differences:
        if math.isfinite(difference.low):
            gains[difference.method] = (difference.mean, difference.low, difference.high)
    return gains


def save_figure(figure: Figure, path: Path) -> None:
    """To a file, in the format of its ending; no time in it, so that equal figures are
    equal files.
    """
    ending = path.suffix.lower()
    if ending not in UNDATED:
        raise UserError(f"cannot draw to {path}: the name must end in {', '.join(UNDATED)}")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"cannot write {path}: {path.parent} is not a folder that you may write to")
    drawn = io.BytesIO()
    with figure_style():
        figure.savefig(drawn, format=ending[1:], dpi=150, metadata=UNDATED[ending])
    content = drawn.getvalue()
    if ending == ".svg":
        svg = safe_text(content.decode())  # one with a control character in it is no SVG
        content = svg.replace("<defs>", f"{dark_drawing()}\n <defs>", 1).encode()
    write_whole(path, content)

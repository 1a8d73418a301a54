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

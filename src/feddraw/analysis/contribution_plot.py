"""The forest plot of contributions: each site's, with its interval, by estimator."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from feddraw.analysis.contributions import SiteContributions
from feddraw.analysis.palette import SERIES
from feddraw.analysis.plots import LINE_GREY, draw_legend, figure_style, name_rows
from feddraw.results.contribution_file import ESTIMATORS

MARKERS = ("s", "o", "D")


def contribution_figure(by_estimator: Mapping[str, SiteContributions], metric: str) -> Figure:
    """One row per site, one mark per estimator; to the right of the line the site contributes."""
    sites = next(iter(by_estimator.values())).sites
    with figure_style():
        figure = Figure(figsize=(6.4, 1.3 + 0.34 * len(sites)), layout="constrained")
        draw_contributions(figure.subplots(), by_estimator, metric)
    return figure


def draw_contributions(
    axes: Axes, by_estimator: Mapping[str, SiteContributions], metric: str
) -> None:
    """The forest plot on given axes."""
    offset = 0.2
    first = -offset * (len(by_estimator) - 1) / 2
    for place, (name, contributions) in enumerate(by_estimator.items()):
        colour = SERIES[place]
        for row, estimate in enumerate(contributions.estimates):
            height = row + first + place * offset
            axes.plot([estimate.low, estimate.high], [height] * 2, color=colour, linewidth=1.4)
            axes.plot(
                estimate.value,
                height,
                marker=MARKERS[place],
                color=colour,
                markersize=5,
                linestyle="none",
                label=ESTIMATORS[name] if row == 0 else "_",
            )
    axes.axvline(0, color=LINE_GREY, linewidth=0.8, zorder=0)
    name_rows(axes, next(iter(by_estimator.values())).sites)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel(f"contribution to {metric}, 95 % interval", fontsize=8)
    marked = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    draw_legend(axes, marked)

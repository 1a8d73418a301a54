"""The forest plot of a federation: each site's distance with its interval, the weights by rule, Q
by parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from feddraw.analysis.palette import MUTED, SERIES
from feddraw.analysis.plots import draw_legend, figure_style, line_look, short_label
from feddraw.analysis.site_heterogeneity import RULES, Heterogeneity, SiteDistance

RULE_NAMES = {
    "fedavg": "FedAvg",
    "random_effects": "random effects",
    "feddraw": "FedDRAW",
    "uniform": "uniform",
}
MOST_SITES = 40  # names of more could not be read
SMALLEST_SQUARE, LARGEST_SQUARE = 4.0, 10.0  # sides of the squares, in points


def after_rounds(round: int) -> str:
    """At which model something was measured."""
    return f"after {round} round{'s' * (round != 1)}" if round else "initial model"


def forest_figure(found: Sequence[Heterogeneity]) -> Figure:
    """All models in one figure; for many sites those that are farthest away."""
    shown = _sites_in_forest(found[-1].sites)
    groups = [*found[-1].layers, *found[-1].findings]
    height = 1.3 + 0.32 * max(len(shown), len(groups))
    with figure_style():
        figure = Figure(figsize=(10.5 if groups else 7.5, height), layout="constrained")
        ratios = [3.2, 2.2, 2.2][: 3 if groups else 2]
        axes = figure.subplots(1, len(ratios), width_ratios=ratios, squeeze=False)[0]
        draw_forest_distances(axes[0], found)
        _draw_forest_weights(axes[1], found[-1], shown)
        if groups:
            _draw_forest_q(axes[2], found)
    return figure


def _sites_in_forest(sites: Sequence[SiteDistance]) -> list[str]:
    ranked = sorted(sites, key=lambda one: -(one.distance if one.distance is not None else -np.inf))
    kept = {one.site for one in ranked[:MOST_SITES]}
    return [one.site for one in sites if one.site in kept]


def _offsets_in_row(count: int) -> list[float]:
    """Several models side by side in one row."""
    return [0.0] if count == 1 else np.linspace(-0.18, 0.18, count).tolist()


def _forest_square_style(place: int, count: int) -> dict[str, Any]:
    """The last model's squares are full, those before it hollow."""
    colour = SERIES[0] if place == count - 1 else SERIES[1]
    return {"color": colour, "markerfacecolor": colour if place == count - 1 else "none"}


def draw_forest_distances(axes: Axes, found: Sequence[Heterogeneity]) -> None:
    """One row per site and, where there are several models, one square per model in it."""
    shown = _sites_in_forest(found[-1].sites)
    for place, (one, offset) in enumerate(zip(found, _offsets_in_row(len(found)), strict=True)):
        looks = _forest_square_style(place, len(found))
        most = max(site.measured for site in one.sites) or 1
        for site in one.sites:
            if site.site not in shown or site.distance is None:
                continue
            row = shown.index(site.site) + offset
            if site.low is not None and site.high is not None:
                axes.plot([site.low, site.high], [row, row], color=looks["color"], linewidth=1.4)
            side = SMALLEST_SQUARE + (LARGEST_SQUARE - SMALLEST_SQUARE) * site.measured / most
            axes.plot(site.distance, row, marker="s", markersize=side, linestyle="none", **looks)
        axes.plot([], [], marker="s", linestyle="none", label=_q_legend(one), **looks)
    axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    for site in (site for site in found[-1].sites if site.site in shown and site.distance is None):
        axes.text(
            0, shown.index(site.site), " too few images", va="center", fontsize=8, color=MUTED
        )
    _name_rows(axes, shown)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("squared distance / variance of one image", fontsize=8)
    axes.margins(x=0.06)
    bounded = any(site.low is not None for one in found for site in one.sites)
    title = "distance of each site from the others" + (", 95 % interval" if bounded else "")
    axes.set_title(title if len(found) > 1 else f"{title}\n{_q_legend(found[0])}", fontsize=9)
    draw_legend(axes, [line for line in axes.lines if not str(line.get_label()).startswith("_")])


def _q_legend(one: Heterogeneity) -> str:
    p = "" if one.overall.p is None else f", p = {one.overall.p:.3g}"
    return (
        f"{after_rounds(one.round)}: Q = {one.overall.q:.1f}, expected"
        f" {one.overall.expected:.1f}{p}"
    )


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [short_label(name) for name in names], fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="x", labelsize=8)


def _draw_forest_weights(axes: Axes, one: Heterogeneity, shown: Sequence[str]) -> None:
    rules = [rule for rule in RULES if all(rule in site.weights for site in one.sites)]
    for place, (rule, offset) in enumerate(
        zip(rules, np.linspace(-0.24, 0.24, len(rules)), strict=True)
    ):
        values = {site.site: site.weights[rule] for site in one.sites}
        looks = line_look(place) | {"linestyle": "none"}
        rows = [row + offset for row in range(len(shown))]
        axes.plot(
            [values[name] for name in shown], rows, markersize=4.5, label=RULE_NAMES[rule], **looks
        )
    _name_rows(axes, shown)
    axes.tick_params(axis="y", labelleft=False)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel("weight", fontsize=8)
    axes.set_title(f"weights ({after_rounds(one.round)})", fontsize=9)
    draw_legend(axes)


def _draw_forest_q(axes: Axes, found: Sequence[Heterogeneity]) -> None:
    names = [group.name for group in (*found[-1].layers, *found[-1].findings)]
    for place, (one, offset) in enumerate(zip(found, _offsets_in_row(len(found)), strict=True)):
        groups = [*one.layers, *one.findings]
        rows = [names.index(group.name) + offset for group in groups]
        ratios = [group.q / group.expected if group.expected > 0 else np.nan for group in groups]
        axes.plot(
            ratios,
            rows,
            marker="o",
            markersize=5,
            linestyle="none",
            **_forest_square_style(place, len(found)),
        )
    axes.axvline(1, color="0.6", linewidth=0.8, zorder=0)
    axes.axhline(len(found[-1].layers) - 0.5, color="0.6", linewidth=0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    _name_rows(axes, names)
    axes.set_xlabel("Q / its expectation", fontsize=8)
    axes.set_title("by layers and by finding", fontsize=9)

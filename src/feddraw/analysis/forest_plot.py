"""The forest plot of a federation: each site's distance with its interval, the weights by rule, Q
by parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from feddraw.analysis.palette import MUTED, SERIES
from feddraw.analysis.plots import LINE_GREY, draw_legend, figure_style, line_look, name_rows
from feddraw.analysis.site_heterogeneity import RULES, Heterogeneity, SiteDistance

RULE_NAMES = {
    "fedavg": "FedAvg",
    "random_effects": "random effects",
    "feddraw": "FedDRAW",
    "uniform": "uniform",
}
MOST_SITES = 40  # names of more could not be read
SMALLEST_SQUARE = 4.0  # side of a square, in points
LARGEST_SQUARE = 10.0


def after_rounds(round: int) -> str:
    """At which model something was measured."""
    return f"after {round} round{'s' * (round != 1)}" if round else "initial model"


def forest_figure(models: Sequence[Heterogeneity]) -> Figure:
    """What was measured at several models, in one figure; for many sites those that are farthest
    away.
    """
    last = models[-1]
    sites = _shown_sites(last.sites)
    groups = [*last.layers, *last.findings]
    height = 1.3 + 0.32 * max(len(sites), len(groups))
    width = 10.5 if groups else 7.5
    ratios = [3.2, 2.2, 2.2] if groups else [3.2, 2.2]
    with figure_style():
        figure = Figure(figsize=(width, height), layout="constrained")
        panels = figure.subplots(1, len(ratios), width_ratios=ratios, squeeze=False)[0]
        draw_forest_distances(panels[0], models)
        _draw_weights(panels[1], last, sites)
        if groups:
            _draw_q(panels[2], models)
    return figure


def _shown_sites(sites: Sequence[SiteDistance]) -> list[str]:
    """In their order, the farthest of them where they are many."""

    def closeness(site: SiteDistance) -> float:
        return np.inf if site.distance is None else -site.distance

    farthest = {site.site for site in sorted(sites, key=closeness)[:MOST_SITES]}
    return [site.site for site in sites if site.site in farthest]


def _offsets_in_row(count: int) -> list[float]:
    """Several models side by side in one row."""
    return [0.0] if count == 1 else np.linspace(-0.18, 0.18, count).tolist()


def _marker_look(place: int, count: int) -> dict[str, Any]:
    """The last model's markers are full, those before it hollow."""
    if place == count - 1:
        return {"color": SERIES[0], "markerfacecolor": SERIES[0]}
    return {"color": SERIES[1], "markerfacecolor": "none"}


def draw_forest_distances(axes: Axes, models: Sequence[Heterogeneity]) -> None:
    """One row per site and, where there are several models, one square per model in it."""
    shown = _shown_sites(models[-1].sites)
    for place, (model, offset) in enumerate(zip(models, _offsets_in_row(len(models)), strict=True)):
        look = _marker_look(place, len(models))
        _draw_squares(axes, model, shown, offset, look)
        axes.plot([], [], marker="s", linestyle="none", label=_q_legend(model), **look)
    axes.axvline(0, color=LINE_GREY, linewidth=0.8, zorder=0)
    for site in models[-1].sites:
        if site.site in shown and site.distance is None:
            row = shown.index(site.site)
            axes.text(0, row, " too few images", va="center", fontsize=8, color=MUTED)
    _name_rows(axes, shown)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("squared distance / variance of one image", fontsize=8)
    axes.margins(x=0.06)
    title = "distance of each site from the others"
    if any(site.low is not None for model in models for site in model.sites):
        title += ", 95 % interval"
    if len(models) == 1:
        title += f"\n{_q_legend(models[0])}"
    axes.set_title(title, fontsize=9)
    draw_legend(axes, [line for line in axes.lines if not str(line.get_label()).startswith("_")])


def _draw_squares(
    axes: Axes,
    model: Heterogeneity,
    shown: Sequence[str],
    offset: float,
    look: Mapping[str, Any],
) -> None:
    """Each site's distance with its interval; larger where more images were measured."""
    most = max(site.measured for site in model.sites) or 1
    for site in model.sites:
        if site.site not in shown or site.distance is None:
            continue
        row = shown.index(site.site) + offset
        if site.low is not None and site.high is not None:
            axes.plot([site.low, site.high], [row, row], color=look["color"], linewidth=1.4)
        side = SMALLEST_SQUARE + (LARGEST_SQUARE - SMALLEST_SQUARE) * site.measured / most
        axes.plot(site.distance, row, marker="s", markersize=side, linestyle="none", **look)


def _q_legend(model: Heterogeneity) -> str:
    overall = model.overall
    p = "" if overall.p is None else f", p = {overall.p:.3g}"
    return f"{after_rounds(model.round)}: Q = {overall.q:.1f}, expected {overall.expected:.1f}{p}"


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    name_rows(axes, names)
    axes.tick_params(axis="x", labelsize=8)


def _draw_weights(axes: Axes, model: Heterogeneity, shown: Sequence[str]) -> None:
    rules = [rule for rule in RULES if all(rule in site.weights for site in model.sites)]
    offsets = np.linspace(-0.24, 0.24, len(rules))
    for place, (rule, offset) in enumerate(zip(rules, offsets, strict=True)):
        by_site = {site.site: site.weights[rule] for site in model.sites}
        weights = [by_site[name] for name in shown]
        rows = [row + offset for row in range(len(shown))]
        look = line_look(place) | {"linestyle": "none"}
        axes.plot(weights, rows, markersize=4.5, label=RULE_NAMES[rule], **look)
    _name_rows(axes, shown)
    axes.tick_params(axis="y", labelleft=False)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel("weight", fontsize=8)
    axes.set_title(f"weights ({after_rounds(model.round)})", fontsize=9)
    draw_legend(axes)


def _draw_q(axes: Axes, models: Sequence[Heterogeneity]) -> None:
    last = models[-1]
    names = [group.name for group in (*last.layers, *last.findings)]
    for place, (model, offset) in enumerate(zip(models, _offsets_in_row(len(models)), strict=True)):
        groups = [*model.layers, *model.findings]
        rows = [names.index(group.name) + offset for group in groups]
        ratios = [group.q / group.expected if group.expected > 0 else np.nan for group in groups]
        look = _marker_look(place, len(models))
        axes.plot(ratios, rows, marker="o", markersize=5, linestyle="none", **look)
    axes.axvline(1, color=LINE_GREY, linewidth=0.8, zorder=0)
    axes.axhline(len(last.layers) - 0.5, color=LINE_GREY, linewidth=0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    _name_rows(axes, names)
    axes.set_xlabel("Q / its expectation", fontsize=8)
    axes.set_title("by layers and by finding", fontsize=9)

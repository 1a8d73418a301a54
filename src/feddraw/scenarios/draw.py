"""A partition at a glance: how many images each client has, and of what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from feddraw.data.dataset import Labels
from feddraw.scenarios.dealing import Partition
from feddraw.scenarios.heterogeneity import label_mixes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HATCHES = ("", "///", "", "...", "", "\\\\\\")


def draw(partition: Partition, labels: Labels, axes: Sequence[Axes]) -> None:
    """Client sizes on the first of two axes, label mixes as stacked bars on the second."""
    sizes, mix = axes
    _draw_sizes(partition, sizes)
    _draw_mix(partition, labels, mix)
    for axis in axes:
        axis.set_ylim(len(partition.shards) - 0.5, -0.5)  # the first client on top
        axis.spines[["top", "right"]].set_visible(False)


def _draw_sizes(partition: Partition, axis: Axes) -> None:
    clients = [shard.client for shard in partition.shards]
    bars = axis.barh(clients, partition.sizes, color="0.45", height=0.7)
    axis.bar_label(bars, [f"{size:,}" for size in partition.sizes], padding=3, fontsize="small")
    axis.set_xlim(0, partition.sizes.max() * 1.25)
    axis.locator_params(axis="x", nbins=3)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.set_xlabel("images")


def _draw_mix(partition: Partition, labels: Labels, axis: Axes) -> None:
    """Colours of one scale from dark to light, and hatches, so that neighbours differ in grey and to every eye."""
    from matplotlib import colormaps

    mixes = label_mixes(partition, labels)
    clients = [shard.client for shard in partition.shards]
    parts = (*labels.findings, "none")
    shades = [*colormaps["cividis"](np.linspace(0.0, 0.9, len(parts) - 1)), "white"]
    start = np.zeros(len(mixes))
    for column, (part, shade) in enumerate(zip(parts, shades, strict=True)):
        edge = "white" if column < len(parts) / 2 else "0.2"  # hatches are drawn in it
        hatch = HATCHES[column % len(HATCHES)] if part != "none" else ""
        share = 100 * mixes[:, column]
        axis.barh(clients, share, left=start, height=0.7, color=shade, edgecolor=edge, hatch=hatch, lw=0.5, label=part)
        start += share
    axis.set_xlim(0, 100.4)
    axis.set_xlabel("% of positives, with images of no finding as “none”")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize="small")


def figure_of(partition: Partition, labels: Labels) -> Figure:
    """Both drawings side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.6 + 0.35 * len(partition.shards)), layout="constrained")
    draw(partition, labels, figure.subplots(1, 2, sharey=True, width_ratios=(2, 3)))
    figure.suptitle(f"{partition.scenario}: {partition.sizes.sum():,} images at {len(partition.shards)} clients")
    return figure

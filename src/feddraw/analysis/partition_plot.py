"""How images are dealt to clients: how many each has, and of which findings."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from feddraw.analysis.plots import draw_sizes, figure_style
from feddraw.data.dataset import Labels
from feddraw.data.scenarios.partition import Partition
from feddraw.data.scenarios.skew_measures import label_mixes

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
        share = 100 * mixes[:, column]
        axes.barh(
            range(len(mixes)),
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

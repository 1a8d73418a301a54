"""The validation AUC at each site over the rounds: whom the common model serves, and whom not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from feddraw.analysis import plots
from feddraw.report.blocks import Block, Gallery, Heading, Picture
from feddraw.report.runs import RecordedRun
from feddraw.report.statistics import Report
from feddraw.text import join_names, slug

NOTE = (
    "On validation images: the AUC of the model at each site, from the site's own images. Mean over"
    " seeds; shaded from the lowest to the highest."
)


def section(report: Report, scenario: str) -> Iterator[Block]:
    pictures = [
        picture
        for method in report.shown
        for picture in site_pictures(report.paired_runs(scenario, method), method, slug(scenario))
    ]
    if pictures:
        yield Heading(f"Each site over the rounds in {scenario}", 3)
        yield Gallery(pictures, NOTE)


def site_pictures(runs: Sequence[RecordedRun], method: str, prefix: str) -> Iterator[Picture]:
    """One panel, where at least two sites have a value in more than one round. Seeds with other
    sites or rounds than the first are left out.
    """
    by_run = [run.site_curves() for run in runs]
    first = by_run[0] if by_run else {}
    shown = [site for site, curve in first.items() if np.isfinite(curve).sum() > 1]
    if len(shown) < 2:
        return
    alike = [
        curves
        for run, curves in zip(runs, by_run, strict=True)
        if curves.keys() == first.keys() and run.done == runs[0].done
    ]
    stacked = {site: np.array([curves[site] for curves in alike]) for site in shown}
    means = {site: curves.mean(axis=0).tolist() for site, curves in stacked.items()}
    spread = {}
    if len(alike) > 1:
        spread = {
            site: (curves.min(axis=0).tolist(), curves.max(axis=0).tolist())
            for site, curves in stacked.items()
        }
    figure, axes = plots.panel_figure()
    plots.draw_lines(axes, means, spread=spread)
    axes.set_ylabel("validation AUC")
    axes.set_title(f"{plots.short_label(method, 30)}: each site")
    plots.draw_legend(axes)
    last = join_names([f"{site} {curve[-1]:.3f}" for site, curve in means.items()])
    words = f"Validation AUC of each site by round under {method}, in the last: {last}"
    yield Picture(f"{prefix}-{slug(method)}-sites", figure, words, method=method)

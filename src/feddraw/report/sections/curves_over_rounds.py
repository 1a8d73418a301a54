"""Metrics over the rounds."""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.analysis.plots import MOST_LINES_IN_PANEL
from feddraw.naming import slug
from feddraw.report import pictures
from feddraw.report.blocks import Block, Gallery, Heading
from feddraw.report.report_statistics import Report


def curves_section(report: Report, scenario: str) -> Iterator[Block]:
    drawn = list(pictures.curve_pictures(report.collection.of(scenario), report.shown, report.focus, slug(scenario)))
    if drawn:
        yield Heading(f"Over the rounds in {scenario}", 3)
        note = "Mean over seeds; shaded from least to most. "
        if len(report.shown) > MOST_LINES_IN_PANEL:
            note += f"In panels of many methods the thin line is {report.focus}; first rounds may lie below the frame. "
        yield Gallery(drawn, note + "Test curves are for reading only: nothing was chosen by them.")

"""All sections about one scenario, in the order of the page."""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.analysis.plots import MOST_LINES_IN_PANEL
from feddraw.report import pictures
from feddraw.report.blocks import Block, Gallery, Heading, OnlyFor
from feddraw.report.report_statistics import Report
from feddraw.report.sections.aggregation_weights import aggregation_weights_section
from feddraw.report.sections.client_gains import client_gains_section
from feddraw.report.sections.client_views import client_views_section
from feddraw.report.sections.images_by_finding import images_by_finding_section
from feddraw.report.sections.kept_models_table import kept_models_section
from feddraw.report.sections.method_differences import differences_section, other_pairs_section
from feddraw.report.sections.metrics_by_finding import metrics_by_finding_section
from feddraw.results.recorded_run import METRICS
from feddraw.text import slug


def scenario_sections(report: Report, scenario: str) -> Iterator[Block]:
    runs = report.collection.of(scenario)
    yield Heading(f"Scenario {scenario}", anchor=f"scenario-{slug(scenario)}")
    sizes = list(pictures.client_pictures(runs, slug(scenario)))
    yield Gallery(sizes, "Client sizes and how common each finding is there.")
    yield from images_by_finding_section(report, scenario)
    for metric, label in METRICS.items():
        for section in (
            metrics_by_finding_section,
            differences_section,
            other_pairs_section,
            client_gains_section,
        ):
            yield OnlyFor(list(section(report, scenario, metric, label)), metric=metric)
    yield from client_views_section(report, scenario)
    yield from kept_models_section(report, scenario)
    yield from aggregation_weights_section(report, scenario)
    yield from _curves_over_rounds(report, scenario)
    drawn = list(pictures.roc_pictures(runs, report.shown, report.focus, slug(scenario)))
    if drawn:
        note = (
            "Mean over seeds; the marker is where the threshold chosen on validation data lands on"
            " test data."
        )
        yield Heading(f"Sensitivity and specificity in {scenario}", 3)
        yield Gallery(drawn, note)


def _curves_over_rounds(report: Report, scenario: str) -> Iterator[Block]:
    drawn = list(
        pictures.curve_pictures(
            report.collection.of(scenario), report.shown, report.focus, slug(scenario)
        )
    )
    if drawn:
        yield Heading(f"Over the rounds in {scenario}", 3)
        note = "Mean over seeds; shaded from the lowest to the highest seed. "
        if len(report.shown) > MOST_LINES_IN_PANEL:
            note += (
                f"In panels with many methods, the thin line is {report.focus}; low first rounds"
                " may be cut off. "
            )
        yield Gallery(
            drawn, note + "Test curves are for information only: nothing was chosen by them."
        )

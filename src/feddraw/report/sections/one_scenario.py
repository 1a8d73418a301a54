"""All sections about one scenario, in the order of the page."""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.naming import slug
from feddraw.report import pictures
from feddraw.report.blocks import Block, Gallery, Heading, OnlyFor
from feddraw.report.report_statistics import Report
from feddraw.report.sections import client_views, images_by_finding
from feddraw.report.sections.aggregation_weights import aggregation_weights_section
from feddraw.report.sections.client_gains import client_gains_section
from feddraw.report.sections.curves_over_rounds import curves_section
from feddraw.report.sections.kept_models_table import kept_models_section
from feddraw.report.sections.method_differences import differences_section, other_pairs_section
from feddraw.report.sections.metrics_by_finding import metrics_by_finding_section
from feddraw.results.recorded_run import METRICS


def scenario_sections(report: Report, scenario: str) -> Iterator[Block]:
    runs = report.collection.of(scenario)
    yield Heading(f"Scenario {scenario}", anchor=f"scenario-{slug(scenario)}")
    yield Gallery(
        list(pictures.client_pictures(runs, slug(scenario))), "Client sizes and how common each finding is there."
    )
    draws = report.draws[scenario]
    replicates = report.replicates if not draws.why_none else 0
    yield from images_by_finding.images_by_finding_section(runs, scenario, report.focus, replicates)
    for metric, label in METRICS.items():
        yield OnlyFor(list(metrics_by_finding_section(report, scenario, metric, label)), metric=metric)
        yield OnlyFor(list(differences_section(report, scenario, metric, label)), metric=metric)
        yield OnlyFor(list(other_pairs_section(report, scenario, metric, label)), metric=metric)
        yield OnlyFor(list(client_gains_section(report, scenario, metric, label)), metric=metric)
    yield from client_views.client_views_section(runs, scenario, report.focus, draws, replicates)
    yield from kept_models_section(report, scenario)
    yield from aggregation_weights_section(report, scenario)
    yield from curves_section(report, scenario)
    drawn = list(pictures.roc_pictures(runs, report.shown, report.focus, slug(scenario)))
    if drawn:
        note = "Mean over seeds; the marker is where the threshold chosen on validation data lands on test data."
        yield Heading(f"Sensitivity and specificity in {scenario}", 3)
        yield Gallery(drawn, note)

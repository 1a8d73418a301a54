"""All sections about one scenario, in the order of the page."""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.naming import slug
from feddraw.report import pictures
from feddraw.report.blocks import Block, Gallery, Heading, Only
from feddraw.report.evidence import Draws, Report
from feddraw.report.sections import client_views, images_by_finding
from feddraw.report.sections.by_finding import by_finding
from feddraw.report.sections.client_gains import client_gains
from feddraw.report.sections.curves import curves
from feddraw.report.sections.differences import differences, other_pairs
from feddraw.report.sections.kept_models import kept_models
from feddraw.report.sections.weights import weights
from feddraw.results.recorded_run import METRICS


def scenario_sections(report: Report, scenario: str) -> Iterator[Block]:
    runs = report.collection.of(scenario)
    yield Heading(f"Scenario {scenario}", anchor=f"scenario-{slug(scenario)}")
    yield Gallery(list(pictures.clients(runs, slug(scenario))), "Client sizes and how common each finding is there.")
    draws = report.draws[scenario]
    replicates = report.replicates if isinstance(draws, Draws) else 0
    yield from images_by_finding.section(runs, scenario, report.focus, replicates)
    for metric, label in METRICS.items():
        yield Only(list(by_finding(report, scenario, metric, label)), metric=metric)
        yield Only(list(differences(report, scenario, metric, label)), metric=metric)
        yield Only(list(other_pairs(report, scenario, metric, label)), metric=metric)
        yield Only(list(client_gains(report, scenario, metric, label)), metric=metric)
    yield from client_views.section(runs, scenario, report.focus, draws, replicates)
    yield from kept_models(report, scenario)
    yield from weights(report, scenario)
    yield from curves(report, scenario)
    drawn = list(pictures.operating_points(runs, report.shown, report.focus, slug(scenario)))
    if drawn:
        note = "Mean over seeds; the marker is where the threshold chosen on validation data lands on test data."
        yield Heading(f"Sensitivity and specificity in {scenario}", 3)
        yield Gallery(drawn, note)

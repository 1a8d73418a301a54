"""The sections of a report, in the order in which a reader asks.

The first screen has the result: a headline, the weights of the method in focus, and the table. Then
come the summary, the statistics over scenarios, each scenario in detail, and how it was done.

A section is a file in `sections/` with a function that gives its blocks, and a place in one of the
lists below. What it gives follows its arguments: the report as a whole, a scenario of it, or a
metric in a scenario. A section that has nothing to say gives no blocks and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from feddraw.errors import UserError
from feddraw.report.blocks import (
    Block,
    Heading,
    OnlyFor,
    Paragraph,
    ReportDocument,
    ReportTable,
    blocks_and_inner,
)
from feddraw.report.checklists import checklist_blocks
from feddraw.report.runs import scenario_in_words
from feddraw.report.sections import (
    aggregation_weights,
    all_scenarios,
    calls_by_class,
    caveats,
    client_gains,
    client_sizes,
    client_views,
    contributions,
    diagnostic_performance,
    first_screen,
    images_by_finding,
    kept_models,
    method_differences,
    metrics_by_finding,
    notes,
    over_rounds,
    paper_form,
    participants,
    performance_by_group,
    ranks,
    recalibrated,
    roc_curves,
    servers,
    sites_over_rounds,
    summary,
    what_was_run,
)
from feddraw.report.statistics import Report
from feddraw.system.progress import Progress, no_progress
from feddraw.text import slug, with_article

Section = Callable[[Report], Iterator[Block]]
ScenarioSection = Callable[[Report, str], Iterator[Block]]  # report, scenario
MetricSection = Callable[[Report, str, str], Iterator[Block]]  # report, scenario, metric


def for_each_metric(*sections: MetricSection) -> ScenarioSection:
    """These sections for one metric, then for the next; a reader sees one metric at a time."""

    def of_scenario(report: Report, scenario: str) -> Iterator[Block]:
        for metric in report.metrics:
            for section in sections:
                blocks = checked_blocks(section(report, scenario, metric), section)
                yield OnlyFor(blocks, metric=metric)

    return of_scenario


BEFORE_SCENARIOS: tuple[Section, ...] = (
    first_screen.section,
    summary.section,
    notes.section,
    caveats.section,
    all_scenarios.section,
    ranks.section,
    paper_form.section,
)
OF_EACH_SCENARIO: tuple[ScenarioSection, ...] = (
    client_sizes.section,
    participants.section,
    images_by_finding.section,
    calls_by_class.section,
    for_each_metric(
        metrics_by_finding.section,
        method_differences.from_focus,
        method_differences.of_other_pairs,
        client_gains.section,
        contributions.section,
    ),
    client_views.section,
    kept_models.section,
    aggregation_weights.section,
    over_rounds.section,
    sites_over_rounds.section,
    roc_curves.section,
    diagnostic_performance.section,
    performance_by_group.section,
    recalibrated.section,
)
AFTER_SCENARIOS: tuple[Section, ...] = (servers.section, what_was_run.section)


def compose_report(report: Report, title: str, progress: Progress = no_progress) -> ReportDocument:
    """The whole report as blocks."""
    if not report.collection.runs:
        return ReportDocument(
            title,
            list(servers.only_servers(report)),
            report.scenarios,
            metrics=report.metrics,
        )
    blocks: list[Block] = []
    for section in BEFORE_SCENARIOS:
        blocks += checked_blocks(section(report), section)
    for number, scenario in enumerate(report.scenarios):
        progress("drawing the scenarios", number, len(report.scenarios))
        blocks.append(OnlyFor(list(_scenario_blocks(report, scenario)), scenario=scenario))
    for section in AFTER_SCENARIOS:
        blocks += checked_blocks(section(report), section)
    if name := report.settings.checklist:
        inner = blocks_and_inner(blocks)
        headings = [block.text for block in inner if isinstance(block, Heading)]
        blocks += checklist_blocks(name, report, headings)
    return ReportDocument(title, blocks, report.scenarios, report.shown, report.metrics)


def _scenario_blocks(report: Report, scenario: str) -> Iterator[Block]:
    yield Heading(f"Scenario {scenario}", anchor=f"scenario-{slug(scenario)}")
    if words := scenario_in_words(report.runs(scenario)):
        yield Paragraph(words)
    for section in OF_EACH_SCENARIO:
        yield from checked_blocks(section(report, scenario), section)


def checked_blocks(blocks: Iterator[Block], section: Callable[..., object]) -> list[Block]:
    """The blocks of a section; one that gives anything else, or a table whose rows do not have a
    cell for each column, is told so by name.
    """
    made = list(blocks)
    for block in blocks_and_inner(made):
        if not isinstance(block, Block):
            raise UserError(
                f"{section.__module__} gives {with_article(type(block).__name__)} where a block is"
                " needed (feddraw.report.blocks)"
            )
        if isinstance(block, ReportTable):
            for row in (*block.rows, *block.references):
                if len(row) != len(block.header):
                    raise UserError(
                        f"{section.__module__}: a row of the table '{block.caption}' has {len(row)}"
                        f" cells, and its header {len(block.header)}"
                    )
    return made

"""What a report says, in the order in which a reader asks.

The first screen has the result: a headline, the weights of the method in focus, and the table. Then
come the summary, the statistics over scenarios, each scenario in detail, and how it was done. A
section without content is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.report.blocks import Block, Bullets, Heading, OnlyFor, Paragraph, ReportDocument
from feddraw.report.report_statistics import Report, Say
from feddraw.report.sections.all_scenarios import all_scenarios_section, ranks_section
from feddraw.report.sections.first_screen import first_screen, population_note
from feddraw.report.sections.one_scenario import scenario_sections
from feddraw.report.sections.paper_form import paper_form_section
from feddraw.report.sections.summary import summary_caveats, summary_sentences
from feddraw.report.sections.what_was_run import what_was_run_section
from feddraw.results.run_collection import RunCollection


def compose_report(report: Report, title: str, say: Say) -> ReportDocument:
    """The whole report as blocks."""
    headline, *others = summary_sentences(report)
    blocks: list[Block] = [Paragraph(headline, lead=True)]
    blocks += [
        OnlyFor(list(first_screen(report, s)), scenario=s) for s in report.collection.scenarios
    ]
    blocks += [
        OnlyFor(list(population_note(report, s)), scenario=s) for s in report.collection.scenarios
    ]
    blocks.append(Paragraph(" ".join(disclaimers(report.collection)), quiet=True))
    blocks += [Heading("Summary", anchor="summary"), Bullets(others)]
    blocks += list(summary_caveats(report))
    blocks += list(all_scenarios_section(report))
    blocks += list(ranks_section(report))
    blocks += list(paper_form_section(report))
    for scenario in report.collection.scenarios:
        say(f"drawing {scenario}")
        blocks.append(OnlyFor(list(scenario_sections(report, scenario)), scenario=scenario))
    blocks += list(what_was_run_section(report.collection, report.command, report.folders))
    return ReportDocument(title, blocks, report.collection.scenarios)


def disclaimers(collection: RunCollection) -> Iterator[str]:
    names = {run.settings["data"]["name"] for run in collection.runs}
    if names == {"phantom"}:
        yield (
            "Synthetic phantoms, no patients: they show how the methods behave, not how well they"
            " diagnose."
        )
    yield "Research software, not a medical device."

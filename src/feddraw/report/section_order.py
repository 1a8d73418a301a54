"""What a report says, in the order in which a reader asks.

The first screen has the result: a headline, the weights of the method in focus, and the table. Then come the summary,
the statistics over scenarios, each scenario in detail, and how it was done. A section without content is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.report.blocks import Block, Bullets, Document, Heading, Only, Text
from feddraw.report.evidence import Report, Say
from feddraw.report.sections.all_scenarios import ranks, results
from feddraw.report.sections.first_screen import first_screen, population
from feddraw.report.sections.one_scenario import scenario_sections
from feddraw.report.sections.paper_form import paper_form
from feddraw.report.sections.record import record
from feddraw.report.sections.summary import caveats, main_results
from feddraw.results.run_collection import Collection


def compose(report: Report, title: str, say: Say) -> Document:
    """The whole report as blocks."""
    headline, *others = main_results(report)
    blocks: list[Block] = [Text(headline, lead=True)]
    blocks += [Only(list(first_screen(report, s)), scenario=s) for s in report.collection.scenarios]
    blocks += [Only(list(population(report, s)), scenario=s) for s in report.collection.scenarios]
    blocks.append(Text(" ".join(disclaimers(report.collection)), quiet=True))
    blocks += [Heading("Summary", anchor="summary"), Bullets(others)]
    blocks += list(caveats(report))
    blocks += list(results(report))
    blocks += list(ranks(report))
    blocks += list(paper_form(report))
    for scenario in report.collection.scenarios:
        say(f"drawing {scenario}")
        blocks.append(Only(list(scenario_sections(report, scenario)), scenario=scenario))
    blocks += list(record(report.collection, report.command, report.folders))
    return Document(title, blocks, report.collection.scenarios)


def disclaimers(collection: Collection) -> Iterator[str]:
    names = {run.settings["data"]["name"] for run in collection.runs}
    if names == {"phantom"}:
        yield "Synthetic phantoms, no patients: they show how the methods behave, not how well they diagnose."
    yield "Research software, not a medical device."

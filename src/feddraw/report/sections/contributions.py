"""What each site contributed to the method's model, and what it gained from it: for runs of which
`feddraw contribution` has measured it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from feddraw.analysis.contribution_plot import contribution_figure
from feddraw.analysis.contributions import SiteContributions
from feddraw.analysis.contributions_in_words import (
    estimator_in_focus,
    interval_text,
    over_trainings,
    ranks_text,
    sentence_of_site,
    sentences_on_certainty,
    utility_name,
)
from feddraw.report.blocks import (
    Block,
    Bullets,
    Cell,
    Gallery,
    Heading,
    Paragraph,
    Picture,
    ReportTable,
)
from feddraw.report.runs import RecordedRun
from feddraw.report.sections.client_gains import ClientGain, gains_over_alone
from feddraw.report.statistics import Report
from feddraw.results.contribution_file import (
    ESTIMATORS,
    RunContributions,
    read_contributions,
)
from feddraw.text import grouped, slug


def section(report: Report, scenario: str, metric: str) -> Iterator[Block]:
    """For each method whose contributions were measured: the forest plot, a sentence per site, and
    gave beside gained.
    """
    gains = list(gains_over_alone(report, scenario, metric))
    for method, runs in grouped((run.method, run) for run in report.runs(scenario)).items():
        measured = measured_in(runs, metric)
        if measured:
            own_gains = {gain.client: gain for gain in gains if gain.method == method}
            yield from _of_method(method, scenario, metric, measured, own_gains)


def measured_in(runs: Sequence[RecordedRun], metric: str) -> dict[str, list[RunContributions]]:
    """By estimator, what was measured in these runs; only runs of the same sites are put
    together.
    """
    measured: dict[str, list[RunContributions]] = {}
    for name in ESTIMATORS:
        found = [read_contributions(run.path, name, metric) for run in runs]
        there = [each for each in found if each is not None]
        alike = [each for each in there if each.sites == there[0].sites]
        if alike:
            measured[name] = alike
    return measured


def _of_method(
    method: str,
    scenario: str,
    metric: str,
    measured: Mapping[str, Sequence[RunContributions]],
    gains: Mapping[str, ClientGain],
) -> Iterator[Block]:
    label = utility_name(next(iter(measured.values()))[0])
    combined = {
        name: contributions
        for name, trainings in measured.items()
        if (contributions := over_trainings(trainings)) is not None
    }
    focus = estimator_in_focus(combined)
    contributions = combined[focus]
    name = f"contribution-{slug(scenario)}-{slug(method)}-{metric}"
    yield Heading(f"What did each site contribute? {label} of {method} in {scenario}", 3, name)
    yield Paragraph(
        "What the metric of the common model on all test patients would lose without the site. The"
        f" sentences are by {ESTIMATORS[focus]}, from {_trainings(contributions)}."
    )
    sites = range(len(contributions.sites))
    sentences = [sentence_of_site(contributions, site, label) for site in sites]
    yield Bullets([*sentences, *sentences_on_certainty(contributions)])
    words = f"Contribution of each site to the {label} of {method} in {scenario}"
    figure = contribution_figure(combined, label)
    yield Gallery([Picture(name, figure, words)], "95 % intervals over patients and trainings.")
    yield _gave_and_gained(combined, gains, f"Contribution to the {label} of {method}, {scenario}")


def _trainings(contributions: SiteContributions) -> str:
    count = contributions.trainings
    return f"{count} training{'s' * (count != 1)}"


def _gave_and_gained(
    combined: Mapping[str, SiteContributions], gains: Mapping[str, ClientGain], caption: str
) -> ReportTable:
    """What the others' model has of each site beside what the site has of the others'."""
    first = next(iter(combined.values()))
    header = ["site", *(f"gave: {ESTIMATORS[name]}" for name in combined), "rank"]
    ranked = combined[estimator_in_focus(combined)]
    if gains:
        header.append("gained over training alone")
    rows = []
    for number, site in enumerate(first.sites):
        estimates = [contributions.estimates[number] for contributions in combined.values()]
        cells = [Cell(interval_text(estimate), estimate.value) for estimate in estimates]
        row = [Cell(site), *cells, Cell(ranks_text(ranked, number))]
        if gains:
            gain = gains.get(site)
            row.append(
                Cell("not run")
                if gain is None
                else Cell(f"{gain.gain.value:+.4f}", gain.gain.value)
            )
        rows.append(row)
    note = "In brackets the 95 % interval."
    if gains:
        note += (
            " Gave: what the common model has of the site, on all test patients. Gained: the"
            " common model minus the one that the site trained alone, on the same patients."
        )
    return ReportTable(caption=caption, header=header, rows=rows, note=note)

"""The same measures at each site and in each subgroup: where the model does worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from feddraw.analysis import diagnostic_plots, plots
from feddraw.analysis.diagnostic_measures import DiagnosticTest
from feddraw.analysis.diagnostic_plots import ForestRow
from feddraw.data.dataset import SITE
from feddraw.data.finding_counts import LabelWords
from feddraw.data.subgroups import Subgrouping
from feddraw.report.blocks import (
    Block,
    Bullets,
    Fold,
    Gallery,
    Heading,
    Paragraph,
    Picture,
    ReportTable,
)
from feddraw.report.diagnostic_tables import (
    Measure,
    TestedRow,
    few_in_a_sentence,
    has_few,
    measures_table,
    performance_tables,
)
from feddraw.report.diagnostic_tests import (
    CountedRun,
    ScoredRun,
    Subgroup,
    counted_runs,
    diagnostic_tests,
    groupings_of_counts,
    subgroups_of,
    tests_of_counts,
)
from feddraw.report.runs import (
    HoldoutPredictions,
    RecordedRun,
    read_holdout_predictions,
)
from feddraw.report.sections.roc_curves import MOST_CURVES, scored_runs, shown_methods
from feddraw.report.statistics import Report
from feddraw.results.score_counts import ScoreCounts
from feddraw.text import join_names, slug

ALL = "all"
OWN_IMAGES = "client"  # the grouping of images that clients kept back
SHOWN_ROWS = 60  # of a table; one with more is folded
BENEFIT_POINTS = 4  # thresholds of net benefit, over the stated range
FOREST_MEASURES: Mapping[str, Measure] = {
    "AUC": DiagnosticTest.auc,
    "sensitivity": DiagnosticTest.sensitivity,
    "specificity": DiagnosticTest.specificity,
    "calibration intercept": DiagnosticTest.calibration_intercept,
}

# By subgroup, where None is all images, and finding.
Tests = Mapping[Subgroup | None, Mapping[str, DiagnosticTest]]


@dataclass(frozen=True, eq=False)
class Grouping:
    """One way to divide the images, with the tests of each part."""

    name: str
    tests: Tests

    @property
    def subgroups(self) -> list[Subgroup]:
        return [subgroup for subgroup in self.tests if subgroup is not None]

    @property
    def kind(self) -> str:
        """What is said of whose images these are."""
        return "images that each client kept back" if self.name == OWN_IMAGES else "test images"


def section(report: Report, scenario: str) -> Iterator[Block]:
    scored = list(scored_runs(report.paired_runs(scenario)))
    methods = shown_methods([run for run, _ in scored], report.focus)[:MOST_CURVES]
    groupings = {
        method: list(_groupings([pair for pair in scored if pair[0].method == method]))
        for method in methods
    }
    source = " Intervals are 95 % confidence intervals over patients"
    if not scored:
        counted = {pair[0].method: pair for pair in counted_runs(report.paired_runs(scenario))}
        methods = shown_methods([run for run, _ in counted.values()], report.focus)[:MOST_CURVES]
        groupings = {method: list(_counted_groupings(counted[method])) for method in methods}
        source = _counted_in_words(
            [counts for _, counts in counted.values()], report.task.words.labels.one
        )
    groupings = {method: of_method for method, of_method in groupings.items() if of_method}
    if not groupings:
        return
    first, *others = groupings
    compared = {
        method: [grouping for grouping in of_method if len(grouping.subgroups) > 1]
        for method, of_method in groupings.items()
    }
    every_test = [
        test for group in groupings[first] for of in group.tests.values() for test in of.values()
    ]
    same_thresholds = ", with the thresholds of all" if report.task.has_thresholds else ""
    yield Heading(f"{_heading(compared[first])} in {scenario}", 3)
    yield Paragraph(
        f"The same measures for parts of the test images{same_thresholds}.{source}, and"
        " are not corrected for the number of parts: of twenty, one misses by chance."
        + few_in_a_sentence(every_test, report.task)
    )
    words = report.task.words.labels
    remarks = [remark for grouping in groupings[first] for remark in _remarks(grouping, words)]
    if remarks:
        yield Bullets(remarks)
    if not compared[first]:
        return
    yield from _galleries(compared[first], first, scenario)
    for grouping in compared[first]:
        yield from _tables(grouping, first, report, scenario)
    for method in others:
        inner = [
            table
            for grouping in compared[method]
            for table in _tables(grouping, method, report, scenario)
        ]
        yield Fold(f"The same for {method}", inner)


def _heading(compared: Sequence[Grouping]) -> str:
    """It names what is compared: checklists read there what a report has."""
    names = join_names([grouping.name for grouping in compared])
    return f"By {names}" if compared else "Parts of the test images"


# ------------------------------------------------------------------------------------- the parts


def _groupings(scored: Sequence[ScoredRun]) -> Iterator[Grouping]:
    """By site and by each subgroup of the test images; by client where these kept images back and
    sites are not known.
    """
    groups = subgroups_of([predictions for _, predictions in scored])
    for name, subgroups in groups.items():
        tests: dict[Subgroup | None, Mapping[str, DiagnosticTest]] = {
            None: diagnostic_tests(scored)
        }
        for subgroup in subgroups:
            tests[subgroup] = diagnostic_tests(scored, subgroup)
        if subgroups:
            yield Grouping(name, tests)
    if SITE not in groups:
        kept_back = list(_on_own_images(scored))
        if kept_back and len(kept_back) == len(scored):
            of_clients = subgroups_of([predictions for _, predictions in kept_back])
            yield Grouping(
                OWN_IMAGES,
                {client: diagnostic_tests(kept_back, client) for client in of_clients[OWN_IMAGES]},
            )


def _counted_groupings(counted: CountedRun) -> Iterator[Grouping]:
    """The same from the sites' counts."""
    for name, of_subgroups in groupings_of_counts(counted).items():
        tests: dict[Subgroup | None, Mapping[str, DiagnosticTest]] = {
            None: tests_of_counts(counted)
        }
        for subgroup, of_subgroup in of_subgroups.items():
            tests[subgroup] = of_subgroup
        yield Grouping(name, tests)


def _counted_in_words(counted: Sequence[ScoreCounts], one: str) -> str:
    least = max((counts.least_patients for counts in counted), default=0)
    return (
        f" From counts: a site leaves out a {one} of a subgroup with fewer than {least} patients,"
        " and more subgroups where the rest would give it away, so these rows have fewer images"
        " than all. Intervals are 95 % confidence intervals over images"
    )


def _on_own_images(scored: Sequence[ScoredRun]) -> Iterator[ScoredRun]:
    """The same runs on the images that clients kept back, with the client as the grouping."""
    for run, predictions in scored:
        holdout = read_holdout_predictions(run.path)
        if holdout is not None and _of_run(holdout, run):
            # Without patients an image is one unit, by its row in the data set.
            owners = holdout.rows if holdout.patients is None else holdout.patients
            by_client = Subgrouping(
                OWN_IMAGES, tuple(run.ledger.clients), holdout.clients.astype(np.int16)
            )
            yield (
                run,
                replace(
                    predictions,
                    scores=holdout.scores,
                    truth=holdout.truth,
                    patients=owners,
                    groupings=(by_client,),
                ),
            )


def _of_run(holdout: HoldoutPredictions, run: RecordedRun) -> bool:
    """Whether its numbers of clients and findings are those of the run."""
    clients = holdout.clients
    return (
        holdout.truth.shape[1] == len(run.findings)
        and len(clients) > 0
        and 0 <= clients.min() <= clients.max() < len(run.ledger.clients)
    )


def _remarks(grouping: Grouping, words: LabelWords) -> Iterator[str]:
    """What cannot be said of a part, and why: one line each."""
    name = grouping.name
    if len(grouping.subgroups) == 1:
        yield (
            f"{name}: all {grouping.kind} are {grouping.subgroups[0].name}, so there is nothing to"
            " compare."
        )
        return
    for subgroup in grouping.subgroups:
        of_subgroup = grouping.tests[subgroup].items()
        nothing = [finding for finding, test in of_subgroup if not test.positives + test.negatives]
        no_positive = [
            finding for finding, test in of_subgroup if test.negatives and not test.positives
        ]
        no_negative = [
            finding for finding, test in of_subgroup if test.positives and not test.negatives
        ]
        for lacks, findings in (
            ("no labelled image of {names}", nothing),
            (words.no_positive, no_positive),
            (words.no_negative, no_negative),
        ):
            if findings:
                what = lacks.format(names=join_names(findings))
                yield f"{name} {subgroup.name} has {what}: what needs one is undefined."


# -------------------------------------------------------------------------------------- the tables


def _tables(grouping: Grouping, method: str, report: Report, scenario: str) -> Iterator[Block]:
    rows = _rows(grouping)
    about = f"{method} in {scenario} by {grouping.name}"
    label = f"{slug(grouping.name)}-{slug(scenario)}-{slug(method)}"
    names = [report.task.words.labels.one, grouping.name]
    tables = list(performance_tables(rows, names, about, label, report.task))
    if len(rows) > SHOWN_ROWS:
        yield Fold(f"The {len(rows)} rows of {about}", tables)
    else:
        yield from tables
    yield Fold(f"Net benefit by {grouping.name}", [_net_benefits(rows, names, about, report)])


def _rows(grouping: Grouping) -> list[TestedRow]:
    """Each finding's images, all of them first."""
    findings = next(iter(grouping.tests.values()))
    return [
        TestedRow([finding, ALL if subgroup is None else subgroup.name], tests[finding])
        for finding in findings
        for subgroup, tests in grouping.tests.items()
    ]


def _net_benefits(
    rows: Sequence[TestedRow], names: Sequence[str], about: str, report: Report
) -> ReportTable:
    low, high = report.settings.decision_range
    limits = np.linspace(low, high, BENEFIT_POINTS).tolist()
    measures = {f"at {limit:.1%}": _net_benefit_at(limit) for limit in limits}
    return measures_table(
        rows,
        names,
        measures,
        task=report.task,
        caption=f"{about}: net benefit by threshold probability",
        note=(
            "True positives per image, less false ones times the odds of the threshold; calling no"
            " image positive has 0."
        ),
    )


def _net_benefit_at(threshold: float) -> Measure:
    return lambda test: test.net_benefit(threshold)


# ------------------------------------------------------------------------------------- the figures


def _galleries(groupings: Sequence[Grouping], method: str, scenario: str) -> Iterator[Block]:
    """A forest plot per finding: one measure is open, the others are folded."""
    folded: list[Block] = []
    for measure_name, measure in FOREST_MEASURES.items():
        pictures = list(_forests(groupings, measure_name, measure, method, scenario))
        note = (
            f"{measure_name} of {method}, with 95 % intervals; larger squares stand for more"
            " images, hollow ones for fewer than ten of a label. The line is that of all test"
            " images."
        )
        if measure_name == "AUC":
            yield Gallery(pictures, note)
        else:
            folded.append(Gallery(pictures, note))
    yield Fold("Sensitivity, specificity and calibration as forest plots", folded)


def _forests(
    groupings: Sequence[Grouping],
    measure_name: str,
    measure: Measure,
    method: str,
    scenario: str,
) -> Iterator[Picture]:
    for finding in next(iter(groupings[0].tests.values())):
        rows = []
        overall = None
        for grouping in groupings:
            rows.append(ForestRow(grouping.name))
            for subgroup, tests in grouping.tests.items():
                measured = measure(tests[finding])
                if subgroup is None:
                    overall = measured.value if measured.defined else None
                    continue
                test = tests[finding]
                images = test.positives + test.negatives
                rows.append(ForestRow(subgroup.name, measured, images, has_few(test)))
        if not any(row.measured is not None and row.measured.defined for row in rows):
            continue
        figure, axes = plots.panel_figure(4.4, diagnostic_plots.forest_height(len(rows)))
        diagnostic_plots.draw_forest(axes, rows, overall)
        axes.set_xlabel(measure_name)
        axes.set_title(plots.short_label(finding, 40))
        values = [
            f"{row.name} {row.measured.value:.3f}"
            for row in rows
            if row.measured is not None and row.measured.defined
        ]
        words = f"{measure_name} of {method} for {finding}: {', '.join(values)}"
        name = f"{slug(scenario)}-forest-{slug(measure_name)}-{slug(finding)}"
        yield Picture(name, figure, words)

"""The first screen: the headline, the weights of the method in focus, and the table of results
beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

from feddraw.analysis.bootstrap import Interval
from feddraw.analysis.paired_differences import Difference
from feddraw.data.synthetic import is_synthetic
from feddraw.report import pictures
from feddraw.report.blocks import Block, Cell, Gallery, OnlyFor, Paragraph, ReportTable, SideBySide
from feddraw.report.cells import column_cells, interval_cell, note_on_means, number_cell
from feddraw.report.patients import note_on_patients
from feddraw.report.runs import RecordedRun, RunCollection, data_name, has_own_model
from feddraw.report.sections.aggregation_weights import runs_with_weights
from feddraw.report.sections.images_by_finding import tested_images_in_words
from feddraw.report.sections.summary import headline
from feddraw.report.statistics import Report
from feddraw.report.trainings import note_on_trainings
from feddraw.tasks import Task
from feddraw.text import join_names, slug


def section(report: Report) -> Iterator[Block]:
    yield Paragraph(headline(report), lead=True)
    for scenario in report.scenarios:
        yield OnlyFor(list(_weights_beside_tables(report, scenario)), scenario=scenario)
    yield from _tested_images(report)
    yield Paragraph(" ".join(_disclaimers(report.collection, report.task)), quiet=True)


def _tested_images(report: Report) -> Iterator[Block]:
    """Whom the test numbers are about: once if that is the same in all scenarios."""
    sentences = {
        scenario: tested_images_in_words(report.runs(scenario)) for scenario in report.scenarios
    }
    if len(set(sentences.values())) == 1:
        sentence = sentences[report.scenarios[0]]
        if sentence:
            yield Paragraph(sentence, quiet=True)
        return
    for scenario, sentence in sentences.items():
        note = [Paragraph(f"{scenario}: {sentence}", quiet=True)] if sentence else []
        yield OnlyFor(note, scenario=scenario)


def _disclaimers(collection: RunCollection, task: Task) -> Iterator[str]:
    yield task.words.metrics
    names = {data_name(run) for run in collection.runs}
    if names and all(map(is_synthetic, names)):
        images = "phantoms" if names == {"phantom"} else "images"
        yield (
            f"Synthetic {images}, no patients: they show how the methods behave, not how well they"
            " diagnose."
        )
    yield "Research software, not a medical device."


def _weights_beside_tables(report: Report, scenario: str) -> Iterator[Block]:
    tables = [
        OnlyFor([results_table(report, scenario, metric)], metric=metric)
        for metric in report.metrics
    ]
    weighted = runs_with_weights(report, scenario)
    if not weighted:
        yield from tables
        return
    method = report.focus if report.focus in weighted else next(iter(weighted))
    title = f"{method} in {scenario}: weight by round"
    drawn = pictures.weight_pictures({method: weighted[method]}, scenario, title=title)
    yield SideBySide([Gallery(drawn), OnlyFor(tables)])


def results_table(report: Report, scenario: str, metric: str) -> ReportTable:
    """One row per method: its mean, and the difference of the method in focus to it, with
    intervals.
    """
    label = report.metrics[metric]
    methods = report.shown_in(scenario)
    means = {method: report.mean(scenario, method, metric) for method in methods}
    columns = {label: column_cells(means, report.methods)}
    columns |= _difference_columns(report, scenario, metric)

    def row(method: str) -> list[Cell]:
        return [Cell(method), *(column[method] for column in columns.values())]

    compared = f"; difference: {report.focus} − method" if "difference" in columns else ""
    several = len(report.scenarios) > 1
    return ReportTable(
        caption=f"Test {label} in {scenario}{compared}",
        header=["method", *columns],
        rows=[row(method) for method in methods if method in report.methods],
        references=[row(method) for method in methods if method not in report.methods],
        note=" ".join(_notes(report, scenario, metric)),
        label=f"results-{slug(scenario)}-{metric}" if several else f"results-{metric}",
    )


def _difference_columns(report: Report, scenario: str, metric: str) -> dict[str, dict[str, Cell]]:
    """The method in focus minus each method: columns by name, cells by method. What no method has
    is left out.
    """
    methods = report.shown_in(scenario)
    over_patients = {
        method: report.over_patients(scenario, metric, report.focus, method) for method in methods
    }
    drawn = any(over_patients.values())
    over_trainings = {method: report.over_repeats(scenario, metric, method) for method in methods}
    repeated = any(over_trainings.values())
    columns: dict[str, dict[str, Cell]] = {}
    if drawn or repeated:
        columns["difference"] = {
            method: _estimate_cell(over_patients[method], over_trainings[method])
            for method in methods
        }
    if drawn:
        columns[f"95 % CI, {report.draws[scenario].unit}"] = {
            method: interval_cell(over_patients[method]) for method in methods
        }
    if repeated:
        columns["95 % CI, trainings"] = {
            method: interval_cell(over_trainings[method]) for method in methods
        }
    if drawn and report.settings.margin:
        columns[f"no worse by {report.settings.margin:g}"] = {
            method: _no_worse_cell(
                over_patients[method], over_trainings[method], report.settings.margin
            )
            for method in methods
        }
    return columns


def _estimate_cell(patients: Interval | None, trainings: Difference | None) -> Cell:
    if patients is not None:
        return number_cell(patients.estimate, "+.4f")
    return Cell("") if trainings is None else number_cell(trainings.mean, "+.4f")


def _no_worse_cell(patients: Interval | None, trainings: Difference | None, margin: float) -> Cell:
    """Whether both intervals lie above minus the margin."""
    if patients is None and trainings is None:
        return Cell("")
    if patients is None or trainings is None:
        return Cell("one training")
    shown = patients.low > -margin and trainings.low > -margin
    return Cell("yes" if shown else "not shown")


def _notes(report: Report, scenario: str, metric: str) -> Iterator[str]:
    yield note_on_means(report, metric, [scenario])
    runs = report.paired_runs(scenario, metric=metric)
    if methods := list(dict.fromkeys(run.method for run in runs if _is_over_labels(run))):
        yield (
            f"{join_names(methods)}: of each finding the mean over the models of the clients that"
            " label it."
        )
    yield _note(report, scenario, metric)


def _is_over_labels(run: RecordedRun) -> bool:
    """Whether the clients have models of their own, and some label a part of the findings."""
    return any(
        has_own_model(run, client) and run.labelled_by(client) != run.findings
        for client in run.ledger.clients
    )


def _note(report: Report, scenario: str, metric: str) -> str:
    """What the intervals are made of, and what is not in them."""
    draws = report.draws[scenario]
    trainings = report.trainings[metric]
    over_trainings = note_on_trainings(trainings) if trainings.repeats > 1 else ""
    if draws.why_none:
        return f"{draws.why_none} {over_trainings}".rstrip()
    if len(draws.by_metric[metric].by_method) < 2:
        return over_trainings  # no difference, so no column with an interval
    note = f"{note_on_patients(draws)} {over_trainings}".rstrip()
    if draws.left_out:
        note += (
            " Not compared, because scores of the same images are missing:"
            f" {join_names(draws.left_out)}."
        )
    margin = report.settings.margin
    if margin:
        note += (
            f" No worse: both intervals lie above -{margin:g}; this needs more than one training."
        )
    return note

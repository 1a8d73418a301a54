"""Each hospital's view: does it gain over training alone, and over FedAvg, on its own patients and
on all?

Its own patients are those that it kept back (`holdout`); all are the common test split. Differences
are paired: the same patients are drawn for both models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from feddraw.analysis.bootstrap import Interval, interval
from feddraw.report.blocks import Block, Bullets, Cell, Heading, Paragraph, ReportTable
from feddraw.report.cells import number_cell
from feddraw.report.patients import PatientBootstrap, bootstrap_of_holdout
from feddraw.report.runs import HoldoutPredictions, RecordedRun, read_holdout_predictions
from feddraw.report.statistics import Report
from feddraw.text import slug

ALONE = "alone"
FEDAVG = "fedavg"
COMPARED_WITH = {ALONE: "vs training alone", FEDAVG: "vs FedAvg"}


@dataclass(frozen=True)
class ClientDifferences:
    """How a method does for one client: its AUC, and differences to the methods that it is compared
    with.
    """

    client: str
    method: str
    images: int  # that the client kept back, over all seeds
    area: float  # on the client's own patients
    own: Mapping[str, Interval]  # by the method it is compared with, on the client's own patients
    common: Mapping[str, Interval]  # the same on the common test split
    trainings: int  # of each method, that the differences are means over


def section(report: Report, scenario: str) -> Iterator[Block]:
    """One row per client and method, and the answer for the method in focus in words."""
    views = client_views(
        report.paired_runs(scenario), report.draws[scenario], report.replicates_in(scenario)
    )
    if not views:
        return
    name = f"clients-{slug(scenario)}"
    yield Heading(f"Each client's view in {scenario}", 3, name)
    rule = (
        "A gain is shown where the 95 % CI over patients of the paired difference in AUC lies above"
        " 0; it is not corrected for the number of clients."
    )
    if views[0].trainings == 1:
        rule = (
            "With one training the 95 % CI of the paired difference in AUC is over patients only,"
            " so no gain or loss is claimed."
        )
    yield Paragraph(
        "Does a client gain? Its own patients are the images that it kept back (holdout); all"
        f" patients are the common test split, which the headline is about. {rule}"
    )
    in_focus = [view for view in views if view.method == report.focus]
    yield Bullets(list(map(_in_words, in_focus or views)))
    yield ReportTable(
        caption=f"Differences in AUC for each client, {scenario}",
        header=[
            "client",
            "method",
            "images",
            "own AUC",
            "own: − alone",
            "own: − fedavg",
            "all: − alone",
            "all: − fedavg",
        ],
        rows=list(map(_row, views)),
        note=(
            "95 % bootstrap CI over patients in brackets; noise between trainings is not included."
            " Means over seeds."
        ),
        label=name,
    )


# ------------------------------------------------------------------------------------------ numbers


def client_views(
    runs: Sequence[RecordedRun], draws: PatientBootstrap, replicates: int
) -> list[ClientDifferences]:
    """Of every client that kept images back, for every method that is no reference."""
    kept = {}
    for run in runs:
        holdout = read_holdout_predictions(run.path) if run.ledger.clients else None
        if holdout is not None:
            kept[run] = holdout
    methods = list(dict.fromkeys(run.method for run in kept if run.name != "centralised"))
    compared = [method for method in methods if method != ALONE]
    if not compared or not replicates or not {ALONE, FEDAVG} & set(methods):
        return []
    repeats = [
        repeat
        for repeat in dict.fromkeys(run.repeat for run in kept)
        if _all_kept_the_same(kept, repeat, methods)
    ]
    if not repeats:
        return []
    run_of = {(run.method, run.repeat): run for run in kept}
    by_method = [[kept[run_of[method, repeat]] for repeat in repeats] for method in methods]
    clients = run_of[methods[0], repeats[0]].ledger.clients
    views = []
    for number, client in enumerate(clients):
        rows, images = bootstrap_of_holdout(by_method, number, replicates)
        areas = dict(zip(methods, rows, strict=True))
        for method in compared:
            views.append(
                ClientDifferences(
                    client=client,
                    method=method,
                    images=images,
                    area=float(areas[method][0]),
                    own={
                        other: interval(areas[method] - areas[other])
                        for other in (ALONE, FEDAVG)
                        if other in areas and other != method
                    },
                    common=differences_on_all_patients(draws, method, client),
                    trainings=len(repeats),
                )
            )
    return views


def _all_kept_the_same(
    kept: Mapping[RecordedRun, HoldoutPredictions], repeat: str, methods: Sequence[str]
) -> bool:
    """Whether every method kept the same images back in this repeat."""
    by_method = {run.method: holdout for run, holdout in kept.items() if run.repeat == repeat}
    if not set(methods) <= set(by_method):
        return False
    first = by_method[methods[0]]
    return all(
        np.array_equal(by_method[method].rows, first.rows)
        and np.array_equal(by_method[method].clients, first.clients)
        for method in methods
    )


def differences_on_all_patients(
    draws: PatientBootstrap, method: str, client: str
) -> dict[str, Interval]:
    """Differences on the common test split: to the model that the client trained alone, and to
    FedAvg's.
    """
    drawn = draws.by_metric["auc"]
    if method not in drawn.by_method:
        return {}
    used = drawn.used_by(method, client)
    differences = {}
    if client in drawn.alone:
        differences[ALONE] = interval(used - drawn.alone[client])
    if FEDAVG in drawn.by_method and method != FEDAVG:
        differences[FEDAVG] = interval(used - drawn.used_by(FEDAVG, client))
    return differences


# ---------------------------------------------------------------------------------- words and cells


def _in_words(view: ClientDifferences) -> str:
    sentences = [f"{view.client} with {view.method}"]
    populations = {"On its own patients": view.own, "On all patients": view.common}
    for population, differences in populations.items():
        answers = [
            _gain_or_loss(difference, COMPARED_WITH[other], view.trainings)
            for other, difference in differences.items()
        ]
        if answers:
            sentences.append(f"{population}: {'; '.join(answers)}")
    if len(sentences) == 1:
        sentences.append("There is no comparison")
    return ". ".join(sentences) + "."


def _gain_or_loss(difference: Interval, compared: str, trainings: int) -> str:
    """The outcome with its interval; one training shows none, as in the headline."""
    if math.isnan(difference.estimate):
        return f"no comparison {compared}, an AUC is undefined"
    outcome = "no difference shown"
    if trainings == 1:
        outcome = "no gain or loss claimed from one training"
    elif difference.low > 0:
        outcome = "a gain"
    elif difference.high < 0:
        outcome = "a loss"
    return (
        f"{outcome} {compared} ({difference.estimate:+.3f}, 95 % CI {difference.low:+.3f} to"
        f" {difference.high:+.3f})"
    )


def _row(view: ClientDifferences) -> list[Cell]:
    return [
        Cell(view.client),
        Cell(view.method),
        Cell(f"{view.images:,}", view.images),
        number_cell(view.area),
        _difference_cell(view.own.get(ALONE)),
        _difference_cell(view.own.get(FEDAVG)),
        _difference_cell(view.common.get(ALONE)),
        _difference_cell(view.common.get(FEDAVG)),
    ]


def _difference_cell(difference: Interval | None) -> Cell:
    if difference is None:
        return Cell("")
    if math.isnan(difference.estimate):
        return Cell("undefined")
    span = f"[{difference.low:+.3f} to {difference.high:+.3f}]"
    return Cell(f"{difference.estimate:+.3f} {span}", difference.estimate)

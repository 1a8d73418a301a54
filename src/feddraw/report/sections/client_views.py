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
from numpy.typing import NDArray

from feddraw.analysis.bootstrap import Interval, bootstrap, interval
from feddraw.report.blocks import Block, Bullets, Cell, Heading, Paragraph, ReportTable
from feddraw.report.bootstrap_over_patients import PatientBootstrap
from feddraw.report.report_statistics import Report
from feddraw.report.table_cells import number_cell
from feddraw.results.predictions import HoldoutPredictions, read_holdout_predictions
from feddraw.results.recorded_run import RecordedRun
from feddraw.text import slug

Floats = NDArray[np.float64]
ALONE, FEDAVG = "alone", "fedavg"
COMPARED_WITH = {ALONE: "vs training alone", FEDAVG: "vs FedAvg"}


@dataclass(frozen=True)
class ClientView:
    """How a method does for one client: differences in AUC by population and by what it is compared
    with.
    """

    client: str
    method: str
    images: int  # that the client kept back, over all seeds
    area: float  # on the client's own patients
    own: Mapping[str, Interval]  # by the method it is compared with, on the client's own patients
    common: Mapping[str, Interval]  # the same on the common test split


def client_views_section(report: Report, scenario: str) -> Iterator[Block]:
    """One row per client and method, and the answer for the method in focus in words."""
    found = client_views(
        report.collection.of(scenario), report.draws[scenario], report.replicates_in(scenario)
    )
    if not found:
        return
    name = f"clients-{slug(scenario)}"
    yield Heading(f"Each client's view in {scenario}", 3, name)
    yield Paragraph(
        "Does a client gain? Its own patients are the images that it kept back (holdout); all"
        " patients are the common test split, which the headline is about. A gain is shown where"
        " the 95 % CI of the paired difference in AUC lies above 0."
    )
    in_focus = [view for view in found if view.method == report.focus]
    yield Bullets([_view_in_words(view) for view in in_focus or found])
    rows = [
        [
            Cell(view.client),
            Cell(view.method),
            Cell(f"{view.images:,}", view.images),
            number_cell(view.area),
            *(
                _view_difference_cell(table.get(other))
                for table in (view.own, view.common)
                for other in (ALONE, FEDAVG)
            ),
        ]
        for view in found
    ]
    compared = ["own: − alone", "own: − fedavg", "all: − alone", "all: − fedavg"]
    note = (
        "95 % bootstrap CI over patients in brackets; noise between trainings is not included."
        " Means over seeds."
    )
    header = ["client", "method", "images", "own AUC", *compared]
    yield ReportTable(
        f"Differences in AUC for each client, {scenario}", header, rows, (), note, name
    )


def client_views(
    runs: Sequence[RecordedRun], draws: PatientBootstrap, replicates: int
) -> list[ClientView]:
    """Of every client that kept images back, for every method that is no reference."""
    weighed = [run for run in runs if run.ledger.clients]
    kept = {run: own for run in weighed if (own := read_holdout_predictions(run.path)) is not None}
    methods = list(dict.fromkeys(run.method for run in kept if run.name != "centralised"))
    compared = [method for method in methods if method != ALONE]
    if (ALONE not in methods and FEDAVG not in methods) or not compared or not replicates:
        return []
    repeats = [
        r for r in dict.fromkeys(run.repeat for run in kept) if _same_view_images(kept, r, methods)
    ]
    if not repeats:
        return []
    by = {(run.method, run.repeat): found for run, found in kept.items()}
    clients = next(
        run for run in kept if run.method == methods[0] and run.repeat == repeats[0]
    ).ledger.clients
    by_method = [[by[method, repeat] for repeat in repeats] for method in methods]
    found: list[ClientView] = []
    for number, client in enumerate(clients):
        drawn, images = _view_draws(by_method, number, replicates)
        areas = dict(zip(methods, drawn, strict=True))
        for method in compared:
            others = [other for other in (ALONE, FEDAVG) if other in methods and other != method]
            differences = {other: interval(areas[method] - areas[other]) for other in others}
            common = _views_on_all_patients(draws, method, client)
            found.append(
                ClientView(client, method, images, float(areas[method][0]), differences, common)
            )
    return found


def _views_on_all_patients(
    draws: PatientBootstrap, method: str, client: str
) -> dict[str, Interval]:
    """Differences on the common test split: with the model that the client trained alone, and with
    FedAvg's.
    """
    if method not in draws.methods["auc"]:
        return {}
    used, alone = draws.used_by("auc", method, client), draws.clients["auc"]
    found = {ALONE: interval(used - alone[client])} if client in alone else {}
    if FEDAVG in draws.methods["auc"] and method != FEDAVG:
        found[FEDAVG] = interval(used - draws.methods["auc"][FEDAVG])
    return found


def _same_view_images(
    kept: Mapping[RecordedRun, HoldoutPredictions], repeat: str, methods: Sequence[str]
) -> bool:
    """Every method kept the same images back in this repeat."""
    there = {run.method: found for run, found in kept.items() if run.repeat == repeat}
    if not set(methods) <= set(there):
        return False
    first = there[methods[0]]
    return all(
        np.array_equal(there[method].rows, first.rows)
        and np.array_equal(there[method].clients, first.clients)
        for method in methods
    )


def _view_draws(
    kept: Sequence[Sequence[HoldoutPredictions]], client: int, replicates: int
) -> tuple[Floats, int]:
    """The macro AUC of every method on one client's own images and its replicates; and how many
    images those are.
    """
    first = kept[0]
    rows = [found.clients == client for found in first]
    truth = np.concatenate([found.truth[own] for found, own in zip(first, rows, strict=True)])
    if not len(truth):
        return np.full((len(kept), 1 + replicates), np.nan), 0
    outputs = [
        np.concatenate([found.scores[own] for found, own in zip(method, rows, strict=True)])
        for method in kept
    ]
    patients = [found.rows if found.patients is None else found.patients for found in first]
    folds = np.concatenate([np.full(int(own.sum()), number) for number, own in enumerate(rows)])
    owners = np.concatenate([images[own] for images, own in zip(patients, rows, strict=True)])
    rng = np.random.default_rng(0)
    return bootstrap(outputs, truth, rng, patients=owners, folds=folds, replicates=replicates), len(
        truth
    )


def _view_in_words(view: ClientView) -> str:
    said = []
    for where, table in (("On its own patients", view.own), ("On all patients", view.common)):
        answers = [
            _view_gain_or_loss(found, COMPARED_WITH[other]) for other, found in table.items()
        ]
        if answers:
            said.append(f"{where}: {'; '.join(answers)}")
    return f"{view.client} with {view.method}. {'. '.join(said) or 'There is no comparison'}."


def _view_gain_or_loss(found: Interval, over: str) -> str:
    if math.isnan(found.estimate):
        return f"no comparison {over}, an AUC is undefined"
    what = "a gain" if found.low > 0 else "a loss" if found.high < 0 else "no difference shown"
    return f"{what} {over} ({found.estimate:+.3f}, 95 % CI {found.low:+.3f} to {found.high:+.3f})"


def _view_difference_cell(found: Interval | None) -> Cell:
    if found is None:
        return Cell("")
    if math.isnan(found.estimate):
        return Cell("undefined")
    return Cell(f"{found.estimate:+.3f} [{found.low:+.3f} to {found.high:+.3f}]", found.estimate)

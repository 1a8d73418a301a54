"""How many images each client has, and how common each finding is there."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from feddraw.analysis import plots
from feddraw.report.blocks import Block, Bullets, Cell, Gallery, Picture, ReportTable
from feddraw.report.pictures import panel_height
from feddraw.report.runs import (
    RecordedRun,
    findings_of_partition,
    ledger_client_sizes,
    recorded_client_sizes,
    shares_with_finding,
)
from feddraw.report.statistics import Report
from feddraw.text import join_names, slug


def section(report: Report, scenario: str) -> Iterator[Block]:
    pictures = []
    table = None
    runs = report.runs(scenario)
    with_partition = next((run for run in runs if recorded_client_sizes(run)), None)
    if with_partition is not None:
        pictures.append(_sizes_picture(recorded_client_sizes(with_partition), scenario))
        if len(findings_of_partition(with_partition)) > 1:  # a map of one column shows little
            pictures.append(_findings_picture(with_partition, report, scenario))
        else:
            table = _finding_table(with_partition)
    else:
        federated = next((run for run in runs if len(run.ledger.clients) > 1), None)
        if federated is not None:
            pictures.append(_sizes_picture(ledger_client_sizes(federated), scenario))
    if with_partition is not None and (
        one_class := with_partition.one_class_clients(report.task.words.labels)
    ):
        yield Bullets([f"{sentence}." for sentence in one_class])
    if pictures:
        one = report.task.words.labels.one
        held_back = _held_back_in_words(with_partition) if with_partition is not None else ""
        what = "Client sizes." if table else f"Client sizes and how common each {one} is there."
        yield Gallery(pictures, f"{what} {held_back}".rstrip())
    if table is not None:
        yield table


def _held_back_in_words(run: RecordedRun) -> str:
    """That clients train on fewer images than they have, where they keep some back for tests."""
    share = run.settings.get("holdout")
    if not isinstance(share, float) or not share:
        return ""
    every = recorded_client_sizes(run)
    trained = {
        client: size
        for client, size in ledger_client_sizes(run).items()
        if client in every and math.isfinite(size)  # no number where the client never answered
    }
    counts = join_names([f"{client} {size:,.0f}" for client, size in trained.items()])
    training = f" and trains on the rest ({counts})" if trained else ""
    return (
        f"Images held back are included: each client keeps back {100 * share:g} % of its images"
        f" for tests (holdout = {share:g}){training}; weights and the ledger count those trained."
    )


def _sizes_picture(sizes: dict[str, int] | dict[str, float], scenario: str) -> Picture:
    figure, axes = plots.panel_figure(height=panel_height(len(sizes)))
    plots.draw_sizes(axes, sizes)
    counts = join_names([f"{client} {size:,.0f}" for client, size in sizes.items()])
    return Picture(f"{slug(scenario)}-sizes", figure, f"Images at each client: {counts}")


def _finding_table(run: RecordedRun) -> ReportTable:
    """How common the only finding is at each client."""
    findings = findings_of_partition(run)
    rows = []
    for client, size in recorded_client_sizes(run).items():
        cells = [Cell(client), Cell(f"{size:,}", size)]
        for share in shares_with_finding(run, client):
            cells.append(Cell(f"{share:.1%}", share) if math.isfinite(share) else Cell("no label"))
        rows.append(cells)
    header = ["client", "images", *findings]
    return ReportTable("Share of images with the finding, of those with a label", header, rows)


def _findings_picture(run: RecordedRun, report: Report, scenario: str) -> Picture:
    clients = list(recorded_client_sizes(run))
    shares = np.array([shares_with_finding(run, client) for client in clients])
    figure, axes = plots.panel_figure(height=panel_height(len(clients)) + 0.5)
    plots.draw_heat_map(axes, shares, clients, findings_of_partition(run), percent=True)
    one = report.task.words.labels.one
    words = (
        f"Share of each client's images that show each {one}, of those whose label is known; a"
        " dash where none is"
    )
    return Picture(f"{slug(scenario)}-findings", figure, words)

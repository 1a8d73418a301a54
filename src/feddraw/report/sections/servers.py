"""Folders of Flower or FLARE servers: who counted how much, without settings and metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from feddraw.analysis import plots
from feddraw.analysis.explain_weights import WeightExplanation, explain_run_weights
from feddraw.analysis.weights_document import (
    WEIGHT_COLUMNS,
    WEIGHT_COLUMNS_EXPLAINED,
    explanation_document,
    weight_row,
)
from feddraw.analysis.weights_in_words import weights_in_sentences
from feddraw.report.blocks import (
    Block,
    Bullets,
    Cell,
    CodeBlock,
    Gallery,
    Heading,
    Paragraph,
    Picture,
    ReportTable,
)
from feddraw.report.pictures import influence_pictures, weight_pictures
from feddraw.report.runs import RecordedRun
from feddraw.report.sections.aggregation_weights import part_pictures
from feddraw.report.sections.sites_over_rounds import site_pictures
from feddraw.report.sections.what_was_run import shown_path
from feddraw.report.statistics import Report
from feddraw.text import join_names, slug

RULE = "the server's rule"  # in place of a method's name, which the folder does not hold


def section(report: Report) -> Iterator[Block]:
    """One part for each server."""
    for run in report.collection.servers:
        yield from _server(run, shown_path(run.path, report.folders))


def only_servers(report: Report) -> Iterator[Block]:
    """The whole report where no run has metrics."""
    yield Paragraph(" ".join(sentences(report)), lead=True)
    yield Paragraph("Research software, not a medical device.", quiet=True)
    yield from section(report)
    yield Heading("How this report was made", anchor="record")
    yield CodeBlock(report.command)


def sentences(report: Report) -> Iterator[str]:
    """What each folder holds, and what not."""
    for run in report.collection.servers:
        yield (
            f"{shown_path(run.path, report.folders)}, the folder of a Flower or FLARE server, holds"
            f" the weights of {len(run.ledger.clients)} clients in {_rounds_in_words(run)}; it"
            " holds no metrics."
        )


def _rounds_in_words(run: RecordedRun) -> str:
    rounds = run.ledger.rounds
    of_all = f" of {run.planned}" if run.planned > rounds else ""
    return f"{rounds}{of_all} round{'s' * (max(rounds, run.planned) > 1)}"


def _server(run: RecordedRun, name: str) -> Iterator[Block]:
    yield Heading(f"Server's folder {name}", anchor=f"server-{slug(name)}")
    yield Paragraph(
        f"Written by a Flower or FLARE server: {len(run.ledger.clients)} clients,"
        f" {_rounds_in_words(run)}. It does not hold {join_names(run.not_held())}."
    )
    if not np.nan_to_num(run.ledger["weight"]).any():
        hidden = "The weights of all rounds are hidden by secure sums."
        nobody = "No client counted in any round."
        yield Paragraph(hidden if run.ledger.hidden("weight").any() else nobody)
        return
    explained = explain_run_weights(run)
    pictures = weight_pictures({RULE: [run]}, name, title=f"{name}: weight by round")
    pictures += influence_pictures({RULE: [run]}, name, title=f"{name}: influence by round")
    pictures += part_pictures([run], RULE, slug(name))
    pictures += _loss_picture(run, name)
    pictures += site_pictures([run], RULE, slug(name))
    yield Gallery(pictures, "Weight of each client in every round, and what the ledger says of it.")
    yield Bullets(list(weights_in_sentences(explained)))
    yield _table(explained, name)


def _loss_picture(run: RecordedRun, name: str) -> Iterator[Picture]:
    losses = [line.loss for line in run.rounds]
    if sum(map(math.isfinite, losses)) < 2:
        return
    figure, axes = plots.panel_figure()
    plots.draw_lines(axes, {"training loss": losses})
    axes.set_ylabel("training loss")
    axes.set_title(f"{plots.short_label(name, 30)}: training loss")
    words = f"Mean training loss of the clients by round: {losses[0]:.4f} to {losses[-1]:.4f}"
    yield Picture(f"{slug(name)}-loss", figure, words)


def _table(explained: WeightExplanation, name: str) -> ReportTable:
    clients: Sequence[Mapping[str, Any]] = explanation_document(explained)["clients"]
    rows = [[Cell(text) for text in weight_row(client)] for client in clients]
    return ReportTable(
        f"Aggregation weights of {name}",
        list(WEIGHT_COLUMNS),
        rows,
        note=WEIGHT_COLUMNS_EXPLAINED,
    )

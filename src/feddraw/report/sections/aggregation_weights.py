"""The weights of the clients over the rounds, and what they are made of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from feddraw.analysis.explain_weights import explain_run_weights, weights_in_sentences
from feddraw.report import pictures
from feddraw.report.blocks import Block, Bullets, Fold, Gallery, Heading, Paragraph
from feddraw.report.report_statistics import Report
from feddraw.results.recorded_run import RecordedRun
from feddraw.results.run_collection import RunCollection
from feddraw.text import join_names, slug


def aggregation_weights_section(report: Report, scenario: str) -> Iterator[Block]:
    weighed = methods_with_weights(report.collection, scenario)
    if not weighed:
        return
    yield Heading(f"Aggregation weights in {scenario}", 3)
    others = {method: runs for method, runs in weighed.items() if method != report.focus}
    note = (
        "Weight of each client in every round; with several seeds the shade runs from the lowest to"
        " the highest."
    )
    sums = [run.ledger["weight"].sum(axis=1) for runs in weighed.values() for run in runs]
    if any((np.abs(total[total != 0] - 1) > 1e-6).any() for total in sums):  # 0: nobody counted
        note += " Where weights do not sum to 1 they are the coefficients of the clients' updates."
    if others:
        yield Gallery(pictures.weight_pictures(others, slug(scenario)), note)
    limited = [
        method for method, runs in weighed.items() if any(run.ledger.limited for run in runs)
    ]
    if limited:
        yield Paragraph(
            f"A policy limited weights of {join_names(limited)}; the words below say whose and"
            " when."
        )
    for method, runs in weighed.items():
        kinds = (
            pictures.weight_part_pictures,
            pictures.heterogeneity_pictures,
            pictures.weights_by_finding_picture,
            pictures.deviation_picture,
        )
        more = [picture for draw in kinds for picture in draw(runs, method, slug(scenario))]
        if more:
            yield Gallery(more, f"What the weights of {method} are made of.")
        weighed_run = next((run for run in runs if np.nan_to_num(run.ledger["weight"]).any()), None)
        if weighed_run is not None and (more or method in limited):
            said = list(weights_in_sentences(explain_run_weights(weighed_run)))
            yield Fold(
                f"The weights of {method} in words (seed {weighed_run.repeat})", [Bullets(said)]
            )


def methods_with_weights(collection: RunCollection, scenario: str) -> dict[str, list[RecordedRun]]:
    """The methods whose runs have a ledger of weights."""
    found = {method: collection.of(scenario, method) for method in collection.methods}
    return {
        method: runs
        for method, runs in found.items()
        if any(len(run.ledger.clients) for run in runs)
    }

"""The weights of the clients over the rounds, and what they are made of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from feddraw.analysis.explain_weights import explain, listed, sentences
from feddraw.naming import slug
from feddraw.report import pictures
from feddraw.report.blocks import Block, Bullets, Fold, Gallery, Heading, Text
from feddraw.report.evidence import Report
from feddraw.results.recorded_run import Run
from feddraw.results.run_collection import Collection


def weights(report: Report, scenario: str) -> Iterator[Block]:
    weighed = weighed_methods(report.collection, scenario)
    if not weighed:
        return
    yield Heading(f"Aggregation weights in {scenario}", 3)
    others = {method: runs for method, runs in weighed.items() if method != report.focus}
    note = "Weight of each client in every round; with several seeds the shade runs from the lowest to the highest."
    sums = [run.ledger["weight"].sum(axis=1) for runs in weighed.values() for run in runs]
    if any((np.abs(total - 1) > 1e-6).any() for total in sums):
        note += " Where weights do not sum to 1 they are the coefficients of the clients' updates."
    if others:
        yield Gallery(pictures.weights(others, slug(scenario)), note)
    limited = [method for method, runs in weighed.items() if any(run.ledger.limited for run in runs)]
    if limited:
        yield Text(f"A policy limited weights of {listed(limited)}; the words below say whose and when.")
    for method, runs in weighed.items():
        kinds = (pictures.components, pictures.heterogeneity, pictures.by_finding, pictures.deviation)
        more = [picture for draw in kinds for picture in draw(runs, method, slug(scenario))]
        if more:
            yield Gallery(more, f"What the weights of {method} are made of.")
        if more or method in limited:
            said = list(sentences(explain(runs[0])))
            yield Fold(f"The weights of {method} in words (seed {runs[0].repeat})", [Bullets(said)])


def weighed_methods(collection: Collection, scenario: str) -> dict[str, list[Run]]:
    """The methods whose runs have a ledger of weights."""
    found = {method: collection.of(scenario, method) for method in collection.methods}
    return {method: runs for method, runs in found.items() if any(len(run.ledger.clients) for run in runs)}

"""Figures that several sections of a report share: drawings of runs, with a name and a description.

A figure that one section has is made in that section; `analysis.plots` draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from feddraw.analysis import plots
from feddraw.analysis.critical_difference_plot import critical_difference_figure
from feddraw.analysis.statistics import Comparison
from feddraw.report.blocks import Picture
from feddraw.report.runs import RecordedRun
from feddraw.text import slug


def panel_height(rows: int) -> float:
    """Inches of a panel with a row for each client."""
    return min(max(1.6, 0.9 + 0.24 * rows), 8.5)


def ranks_picture(comparison: Comparison, metric: str, label: str, *, prefix: str = "") -> Picture:
    """Demšar's diagram of a comparison over scenarios by a metric, which the label names."""
    ranks = [f"{method} {rank:.2f}" for method, rank in comparison.average_ranks.items()]
    return Picture(
        name=f"{prefix}ranks-{metric}",
        figure=critical_difference_figure({label: comparison}),
        words=f"Average ranks by {label}, best first: {', '.join(ranks)}",
    )


def weight_pictures(
    runs: Mapping[str, Sequence[RecordedRun]], scenario: str, *, title: str = ""
) -> list[Picture]:
    """The weights of each method's clients over the rounds: one panel per method, all on one
    scale.
    """
    largest = max(
        float(np.nanmax(run.ledger["weight"])) for members in runs.values() for run in members
    )
    pictures = []
    for method, members in runs.items():
        weights, spread = ledger_column(members, "weight")
        figure, axes = plots.panel_figure()
        heading = plots.short_label(title or method, 60)
        plots.draw_weights(axes, weights, title=heading, spread=spread)
        axes.set_ylim(top=1.05 * largest)
        pictures.append(
            Picture(
                name=f"{slug(scenario)}-{slug(method)}-weights",
                figure=figure,
                words=f"Weight of each client in every round under {method}",
                method=method,
            )
        )
    return pictures


def influence_pictures(
    runs: Mapping[str, Sequence[RecordedRun]], scenario: str, *, title: str = ""
) -> list[Picture]:
    """The influence of each method's clients over the rounds, where the ledger knows it: under
    secure sums only a client knows how far it moved.
    """
    pictures = []
    for method, members in runs.items():
        if not all(run.ledger.knows_influence for run in members):
            continue
        influence, spread = ledger_column(members, "influence")
        figure, axes = plots.panel_figure()
        heading = plots.short_label(title or f"{method}: influence", 60)
        plots.draw_weights(axes, influence, title=heading, spread=spread)
        axes.set_ylabel("influence")
        pictures.append(
            Picture(
                name=f"{slug(scenario)}-{slug(method)}-influence",
                figure=figure,
                words=f"Influence of each client in every round under {method}",
                method=method,
            )
        )
    return pictures


def ledger_column(
    runs: Sequence[RecordedRun], column: str
) -> tuple[dict[str, list[float]], plots.Spread]:
    """A column of the ledger by client and round, as the mean over repeats; and where there are
    several repeats, the least and the most.

    Repeats with other clients or rounds than the first are left out.
    """
    clients = runs[0].ledger.clients
    rounds = len(runs[0].ledger.status)
    alike = [
        run.ledger[column]
        for run in runs
        if run.ledger.clients == clients and len(run.ledger.status) == rounds
    ]
    stacked = np.stack(alike)  # repeats, rounds, clients
    mean = stacked.mean(axis=0).T.tolist()
    lowest = stacked.min(axis=0).T.tolist()
    highest = stacked.max(axis=0).T.tolist()
    series = dict(zip(clients, mean, strict=True))
    if len(alike) == 1:
        return series, {}
    return series, dict(zip(clients, zip(lowest, highest, strict=True), strict=True))

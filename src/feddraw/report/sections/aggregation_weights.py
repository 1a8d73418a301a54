"""The weights of the clients over the rounds, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from feddraw.analysis import plots
from feddraw.analysis.explain_weights import explain_run_weights
from feddraw.analysis.forest_plot import draw_forest_distances
from feddraw.analysis.site_heterogeneity import Heterogeneity, site_distances_in_ledger
from feddraw.analysis.weights_in_words import weights_in_sentences
from feddraw.report.blocks import (
    Block,
    Bullets,
    Fold,
    Gallery,
    Heading,
    OnlyFor,
    Paragraph,
    Picture,
)
from feddraw.report.pictures import (
    influence_pictures,
    ledger_column,
    panel_height,
    weight_pictures,
)
from feddraw.report.runs import RecordedRun, ledger_client_sizes
from feddraw.report.statistics import Report
from feddraw.tasks import task_of_run
from feddraw.text import join_names, slug

Runs = Sequence[RecordedRun]
SMALLEST_DEVIATION = 0.01  # of the equal weight: below it, clients of one size are alike
NOTE_ON_INFLUENCE = (
    "Influence of each client in every round: its weight times the length of its update, as a share"
    " of all clients'. A client that takes more steps moves farther, so equal weights do not give"
    ' equal influence; training.work = "steps" gives all clients the same number of steps.'
)


def section(report: Report, scenario: str) -> Iterator[Block]:
    weighted = runs_with_weights(report, scenario)
    if not weighted:
        return
    yield Heading(f"Aggregation weights in {scenario}", 3)
    others = {method: runs for method, runs in weighted.items() if method != report.focus}
    if others:
        every_run = [run for runs in weighted.values() for run in runs]
        yield Gallery(weight_pictures(others, scenario), _note_on_weights(every_run))
    influence = influence_pictures(weighted, scenario)
    if influence:
        yield Gallery(influence, NOTE_ON_INFLUENCE)
    limited = [
        method for method, runs in weighted.items() if any(run.ledger.limited for run in runs)
    ]
    if limited:
        yield Paragraph(
            f"A policy limited weights of {join_names(limited)}; the words below say whose and"
            " when."
        )
    for method, runs in weighted.items():
        parts = part_pictures(runs, method, slug(scenario))
        blocks: list[Block] = []
        if parts:
            blocks.append(Gallery(parts, f"What the weights of {method} are made of."))
        if parts or method in limited:
            blocks += _in_words(runs, method)
        if blocks:
            yield OnlyFor(blocks, method=method)


def runs_with_weights(report: Report, scenario: str) -> dict[str, list[RecordedRun]]:
    """By method, where a run averaged models by weights that are not all hidden."""
    weighted = {}
    for method in report.methods:
        runs = [run for run in report.runs(scenario, method) if not run.not_averaged]
        shown = [run for run in runs if not run.ledger.clients or run.ledger.has("weight")]
        if any(run.ledger.clients for run in shown):
            weighted[method] = shown
    return weighted


def _note_on_weights(runs: Runs) -> str:
    note = (
        "Weight of each client in every round; with several seeds the shade runs from the lowest to"
        " the highest."
    )
    for run in runs:
        totals = run.ledger["weight"].sum(axis=1)
        with_update = totals[totals != 0]  # 0: a round without an accepted update
        if (np.abs(with_update - 1) > 1e-6).any():
            coefficients = "they are the coefficients of the clients' updates"
            return f"{note} Where weights do not sum to 1 {coefficients}."
    return note


def _in_words(runs: Runs, method: str) -> Iterator[Block]:
    """The weights of the first repeat that has any."""
    for run in runs:
        if np.nan_to_num(run.ledger["weight"]).any():
            sentences = list(weights_in_sentences(explain_run_weights(run)))
            title = f"The weights of {method} in words (seed {run.repeat})"
            yield Fold(title, [Bullets(sentences)])
            return


# --------------------------------------------------------------------- what the weights are made of


def part_pictures(runs: Runs, method: str, prefix: str) -> list[Picture]:
    """What the ledger says of the parts of a weight; their names begin with the prefix."""
    return [picture for draw in PARTS for picture in draw(runs, method, prefix)]


def _similarity_and_reputation(runs: Runs, method: str, prefix: str) -> Iterator[Picture]:
    """Similarity and reputation, where the method has them."""
    for part in ("similarity", "reputation"):
        if all(run.ledger.has(part) for run in runs):
            series, spread = ledger_column(runs, part)
            figure, axes = plots.panel_figure()
            plots.draw_lines(axes, series, spread=spread)
            axes.set_ylabel(part)
            axes.set_title(f"{plots.short_label(method, 30)}: {part}")
            plots.draw_legend(axes)
            words = f"{part.capitalize()} of each client in every round under {method}"
            yield Picture(f"{prefix}-{slug(method)}-{part}", figure, words)


def _schedule_picture(runs: Runs, method: str, prefix: str) -> Iterator[Picture]:
    """Trust in size and sharpness, where the method has them."""
    ledger = runs[0].ledger
    if not ledger.has("gamma", "beta"):
        return
    gamma = ledger.common("gamma")
    beta = ledger.common("beta")
    figure, axes = plots.panel_figure()
    plots.draw_schedules(axes, gamma, beta)
    words = (
        f"The two schedules of {method}: gamma falls from {gamma[0]:.2f} to {gamma[-1]:.4f}, beta"
        f" ends at {beta[-1]:.2f}"
    )
    yield Picture(f"{prefix}-{slug(method)}-schedules", figure, words)


def _heterogeneity_pictures(runs: Runs, method: str, prefix: str) -> Iterator[Picture]:
    """Cochran's Q over the rounds, and each client's distance at the end, where the method has
    measured them.
    """
    ledger = runs[0].ledger
    measured = site_distances_in_ledger(ledger, len(ledger.status))
    if measured:
        name = f"{prefix}-{slug(method)}"
        yield _q_picture(runs[0], measured, method, f"{name}-q")
        yield _distances_picture(measured[-1], method, f"{name}-distances")


def _q_picture(
    run: RecordedRun, measured: Sequence[Heterogeneity], method: str, name: str
) -> Picture:
    figure, axes = plots.panel_figure()
    expected = run.ledger.common("q_expected")
    plots.draw_lines(axes, {"Q": run.ledger.common("q"), "expected if alike": expected})
    axes.set_ylim(bottom=0)
    axes.set_title(f"{plots.short_label(method, 30)}: Cochran's Q")
    plots.draw_legend(axes)
    first = measured[0].overall
    last = measured[-1].overall
    words = (
        f"Cochran's Q of the clients' gradients under {method}: Q is {first.q:.1f} at first and"
        f" {last.q:.1f} at the end; {last.expected:.1f} is expected of alike clients"
    )
    return Picture(name, figure, words)


def _distances_picture(measured: Heterogeneity, method: str, name: str) -> Picture:
    figure, axes = plots.panel_figure(height=panel_height(len(measured.sites)) + 0.5)
    draw_forest_distances(axes, [measured])
    distances = [
        f"{site.site} {site.distance:.4f}" for site in measured.sites if site.distance is not None
    ]
    words = (
        f"Squared distance of each client from the others under {method} in round"
        f" {measured.round}: {join_names(distances)}"
    )
    return Picture(name, figure, words)


def weights_by_finding_picture(runs: Runs, method: str, prefix: str) -> Iterator[Picture]:
    """Weights of each finding's row of the classifier, in the round in which they differ most."""
    by_finding = runs[0].by_class()
    if len(by_finding) < 2:  # nothing to compare
        return
    one = task_of_run(runs[0]).words.labels.one
    weights = np.stack(list(by_finding.values()), axis=2)  # rounds, clients, findings
    spread = weights.max(axis=2) - weights.min(axis=2)
    round = int(np.nan_to_num(spread).max(axis=1).argmax())
    clients = runs[0].ledger.clients
    figure, axes = plots.panel_figure(height=panel_height(len(clients)) + 0.5)
    plots.draw_heat_map(axes, weights[round], clients, list(by_finding))
    axes.set_title(f"{plots.short_label(method, 30)}: weight by {one}, round {round}")
    words = f"Weight of each client for each {one} under {method} in round {round}"
    yield Picture(f"{prefix}-{slug(method)}-by-finding", figure, words)


def _deviation_picture(runs: Runs, method: str, prefix: str) -> Iterator[Picture]:
    """Clients of one size, only where they differ by more than a hundredth of the equal weight."""
    weights, _ = ledger_column(runs, "weight")
    figure, axes = plots.panel_figure()
    title = f"{plots.short_label(method, 30)}: clients of one size"
    drawn = plots.draw_deviation(axes, weights, ledger_client_sizes(runs[0]), title=title)
    visible = SMALLEST_DEVIATION / len(weights)
    if drawn and any(np.ptp(line.get_ydata()) > visible for line in axes.lines):
        words = (
            "How far the weight of each client is from the mean weight of the clients of its size,"
            f" under {method}"
        )
        yield Picture(f"{prefix}-{slug(method)}-deviation", figure, words)


PARTS: tuple[Callable[[Runs, str, str], Iterator[Picture]], ...] = (
    _similarity_and_reputation,
    _schedule_picture,
    _heterogeneity_pictures,
    weights_by_finding_picture,
    _deviation_picture,
)

"""The figures of a report: from runs to drawings with a name and a description."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddraw.analysis import plots
from feddraw.analysis.bootstrap import Interval
from feddraw.analysis.forest_plot import draw_forest_distances
from feddraw.analysis.metrics import ROC_GRID, roc_curve
from feddraw.analysis.site_heterogeneity import site_distances_in_ledger
from feddraw.analysis.statistics import Comparison
from feddraw.report.blocks import Picture
from feddraw.results.recorded_run import METRICS, RecordedRun
from feddraw.system.file_reading import number_or_nan
from feddraw.text import grouped, join_names, slug

Floats = NDArray[np.float64]
MOST_ROC_CURVES = 4  # curves in a panel; more cannot be distinguished


def ranks_picture(comparison: Comparison, metric: str, label: str, *, prefix: str = "") -> Picture:
    figure = plots.critical_difference_figure({label: comparison})
    said = ", ".join(f"{method} {rank:.2f}" for method, rank in comparison.average_ranks.items())
    return Picture(
        f"{prefix}ranks-{metric}", figure, f"Average ranks by {label}, best first: {said}"
    )


def client_pictures(runs: Sequence[RecordedRun], scenario: str) -> Iterator[Picture]:
    """Client sizes, and the share of each finding at each client."""
    run = next((run for run in runs if "sizes" in run.partition), None)
    weighed = [one for one in runs if len(one.ledger.clients) > 1]
    sizes = dict(run.partition["sizes"]) if run else _client_sizes(weighed[0]) if weighed else {}
    if not sizes:
        return
    figure, axes = plots.panel_figure(height=_panel_height(len(sizes)))
    plots.draw_sizes(axes, sizes)
    said = join_names([f"{name} {size:,.0f}" for name, size in sizes.items()])
    yield Picture(f"{scenario}-sizes", figure, f"Images at each client: {said}")
    if run is None:
        return
    shares = np.array([_finding_shares(run.partition, name, size) for name, size in sizes.items()])
    figure, axes = plots.panel_figure(height=_panel_height(len(sizes)) + 0.5)
    plots.draw_heat_map(axes, shares, list(sizes), run.partition["findings"], percent=True)
    words = (
        "Share of each client's images that show each finding, of those whose label is known; a"
        " dash where none is"
    )
    yield Picture(f"{scenario}-findings", figure, words)


def _finding_shares(partition: Mapping[str, Any], client: str, size: float) -> Floats:
    """Of a client's images with a known label, those that show each finding; NaN where it labels
    none.
    """
    known = np.array(
        partition.get("known", {}).get(client, [size] * len(partition["findings"])),
        dtype=np.float64,
    )
    positives = np.array(partition["positives"][client], dtype=np.float64)
    return np.asarray(np.divide(positives, known, out=np.full(len(known), np.nan), where=known > 0))


def _client_sizes(run: RecordedRun) -> dict[str, float]:
    return dict(zip(run.ledger.clients, run.ledger.sizes.tolist(), strict=True))


def _panel_height(rows: int) -> float:
    return min(max(1.6, 0.9 + 0.24 * rows), 8.5)


def weight_pictures(
    runs: Mapping[str, Sequence[RecordedRun]], scenario: str, *, title: str = ""
) -> list[Picture]:
    """One panel per method, all on one scale."""
    found = []
    top = max(
        float(np.nanmax(run.ledger["weight"])) for members in runs.values() for run in members
    )
    for method, members in runs.items():
        series, spread = _mean_ledger_column(members, "weight")
        figure, axes = plots.panel_figure()
        plots.draw_weights(
            axes, series, title=plots.short_label(title or method, 60), spread=spread
        )
        axes.set_ylim(top=1.05 * top)
        words = f"Weight of each client in every round under {method}"
        found.append(Picture(f"{scenario}-{slug(method)}-weights", figure, words))
    return found


def deviation_picture(runs: Sequence[RecordedRun], method: str, scenario: str) -> Iterator[Picture]:
    """Only where clients of one size differ by more than a hundredth of the equal weight."""
    series, _ = _mean_ledger_column(runs, "weight")
    figure, axes = plots.panel_figure()
    title = f"{plots.short_label(method, 30)}: clients of one size"
    drawn = plots.draw_deviation(axes, series, _client_sizes(runs[0]), title=title)
    if drawn and any(np.ptp(line.get_ydata()) > 0.01 / len(series) for line in axes.lines):
        words = (
            "How far the weight of each client is from the mean weight of the clients of its size,"
            f" under {method}"
        )
        yield Picture(f"{scenario}-{slug(method)}-deviation", figure, words)


def paper_weight_pictures(
    runs: Sequence[RecordedRun], scenario: str, letters: Iterator[str]
) -> Iterator[Picture]:
    """Two panels of the paper's figure: weights over rounds, and clients of one size as deviations
    from their mean.
    """
    series, _ = _mean_ledger_column(runs, "weight")
    figure, axes = plots.panel_figure()
    letter = next(letters)
    plots.draw_weights(axes, series, title=f"({letter}) {scenario}")
    yield Picture(
        f"paper-weights-{letter}", figure, f"Weight of each client in every round in {scenario}"
    )
    figure, axes = plots.panel_figure()
    letter = next(letters)
    if plots.draw_deviation(
        axes, series, _client_sizes(runs[0]), title=f"({letter}) {scenario}, clients of one size"
    ):
        yield Picture(
            f"paper-weights-{letter}",
            figure,
            f"Deviation from the mean weight of a size in {scenario}",
        )


def weight_part_pictures(
    runs: Sequence[RecordedRun], method: str, scenario: str
) -> Iterator[Picture]:
    """Similarity, reputation and schedules, where the method has them."""
    for part in ("similarity", "reputation"):
        if all(run.ledger.has(part) for run in runs):
            series, spread = _mean_ledger_column(runs, part)
            figure, axes = plots.panel_figure()
            plots.draw_lines(axes, series, spread=spread)
            axes.set_ylabel(part)
            axes.set_title(f"{plots.short_label(method, 30)}: {part}")
            plots.draw_legend(axes)
            words = f"{part.capitalize()} of each client in every round under {method}"
            yield Picture(f"{scenario}-{slug(method)}-{part}", figure, words)
    if runs[0].ledger.has("gamma", "beta"):
        figure, axes = plots.panel_figure()
        gamma, beta = (runs[0].ledger.common(name) for name in ("gamma", "beta"))
        plots.draw_schedules(axes, gamma, beta)
        words = f"gamma falls from {gamma[0]:.2f} to {gamma[-1]:.4f}, beta ends at {beta[-1]:.2f}"
        yield Picture(
            f"{scenario}-{slug(method)}-schedules",
            figure,
            f"The two schedules of {method}: {words}",
        )


def heterogeneity_pictures(
    runs: Sequence[RecordedRun], method: str, scenario: str
) -> Iterator[Picture]:
    """Cochran's Q over the rounds, and each client's distance at the end, where the method has
    measured them.
    """
    measured = site_distances_in_ledger(runs[0].ledger, len(runs[0].ledger.status))
    if not measured:
        return
    figure, axes = plots.panel_figure()
    lines = [runs[0].ledger.common(name) for name in ("q", "q_expected")]
    plots.draw_lines(axes, dict(zip(("Q", "expected if alike"), lines, strict=True)))
    axes.set_ylim(bottom=0)
    axes.set_title(f"{plots.short_label(method, 30)}: Cochran's Q")
    plots.draw_legend(axes)
    first, last = measured[0].overall, measured[-1].overall
    words = (
        f"Q is {first.q:.1f} at first and {last.q:.1f} at the end; {last.expected:.1f} is expected"
        " of alike clients"
    )
    name = f"{scenario}-{slug(method)}"
    yield Picture(
        f"{name}-q", figure, f"Cochran's Q of the clients' gradients under {method}: {words}"
    )
    far = [
        f"{site.site} {site.distance:.4f}"
        for site in measured[-1].sites
        if site.distance is not None
    ]
    said = (
        f"Squared distance of each client from the others under {method} in round"
        f" {measured[-1].round}"
    )
    figure, axes = plots.panel_figure(height=_panel_height(len(measured[-1].sites)) + 0.5)
    draw_forest_distances(axes, measured[-1:])
    yield Picture(f"{name}-distances", figure, f"{said}: {join_names(far)}")


def weights_by_finding_picture(
    runs: Sequence[RecordedRun], method: str, scenario: str
) -> Iterator[Picture]:
    """Weights of each finding's row of the classifier, in the round in which they differ most."""
    weights = runs[0].by_class()
    if weights:
        stack = np.stack(list(weights.values()), axis=2)  # rounds, clients, findings
        apart = np.nan_to_num(stack.max(axis=2) - stack.min(axis=2)).max(axis=1)
        figure, axes = plots.panel_figure(height=_panel_height(stack.shape[1]) + 0.5)
        plots.draw_heat_map(axes, stack[apart.argmax()], runs[0].ledger.clients, list(weights))
        axes.set_title(
            f"{plots.short_label(method, 30)}: weight by finding, round {apart.argmax()}"
        )
        words = f"Weight of each client for each finding under {method} in round {apart.argmax()}"
        yield Picture(f"{scenario}-{slug(method)}-by-finding", figure, words)


def _mean_ledger_column(
    runs: Sequence[RecordedRun], part: str
) -> tuple[dict[str, list[float]], plots.Spread]:
    """The mean over repeats by client, and least and most; of the first repeat alone where the
    clients differ.
    """
    ledgers, clients, rounds = (
        [run.ledger for run in runs],
        runs[0].ledger.clients,
        len(runs[0].ledger.status),
    )
    stacked = np.stack(
        [one[part] for one in ledgers if (one.clients, len(one.status)) == (clients, rounds)]
    )
    series = {client: stacked.mean(axis=0)[:, i].tolist() for i, client in enumerate(clients)}
    low, high = stacked.min(axis=0), stacked.max(axis=0)
    spread = {client: (low[:, i].tolist(), high[:, i].tolist()) for i, client in enumerate(clients)}
    return series, spread if len(stacked) > 1 else {}


def curve_pictures(
    runs: Sequence[RecordedRun], order: Sequence[str], focus: str, scenario: str
) -> Iterator[Picture]:
    """Each metric on each split that was evaluated in every round."""
    for split in ("validation", "test"):
        for metric, label in METRICS.items():
            series: dict[str, list[float]] = {}
            spread: dict[str, tuple[list[float], list[float]]] = {}
            for method in order:
                lines = [run.curve(split, metric) for run in runs if run.method == method]
                lines = [
                    line
                    for line in lines
                    if np.isfinite(line).sum() > 1 and len(line) == len(lines[0])
                ]
                if lines:
                    series[method] = np.mean(lines, axis=0).tolist()
                if lines[1:]:
                    spread[method] = np.min(lines, axis=0).tolist(), np.max(lines, axis=0).tolist()
            if series:
                title = f"{split} {label}"
                figure = plots.curve_figure(
                    series, focus=focus, order=order, spread=spread, label=title
                )
                yield Picture(
                    f"{scenario}-{split}-{metric}",
                    figure,
                    f"Macro {split} {label} of each method by round",
                )


def roc_pictures(
    runs: Sequence[RecordedRun], order: Sequence[str], focus: str, scenario: str
) -> Iterator[Picture]:
    """One panel per finding: the curves of a few methods, and where their thresholds land."""
    scored = [
        (run, found)
        for run in runs
        if (found := run.predictions()) is not None and found.scores.ndim == 2
    ]
    methods = _methods_in_roc([run for run, _ in scored], focus)
    findings = list(dict.fromkeys(finding for run, _ in scored for finding in run.findings))
    for finding in findings:
        lines: dict[str, tuple[Floats, Floats]] = {}
        points: dict[str, tuple[float, float]] = {}
        for method in methods:
            members = [
                (run, found)
                for run, found in scored
                if run.method == method and finding in found.classes
            ]
            columns = [(found, found.classes.index(finding)) for _, found in members]
            curves = [
                roc_curve(found.scores[:, column], found.truth[:, column])
                for found, column in columns
            ]
            drawn = [curve for curve in curves if curve is not None]
            rates = [_operating_point(run, finding) for run, _ in members]
            if drawn and np.isfinite(rates).all():
                lines[method] = (ROC_GRID, np.mean(drawn, axis=0))
                points[method] = (
                    1 - float(np.mean(rates, axis=0)[1]),
                    float(np.mean(rates, axis=0)[0]),
                )
        if lines:
            figure, axes = plots.panel_figure(3.6, 3.6)
            plots.draw_roc(axes, lines, points, order)
            axes.set_title(plots.short_label(finding, 40))
            said = "; ".join(
                f"{m}: sensitivity {y:.2f}, specificity {1 - x:.2f}" for m, (x, y) in points.items()
            )
            yield Picture(f"{scenario}-roc-{slug(finding)}", figure, f"ROC of {finding}. {said}")


def _operating_point(run: RecordedRun, finding: str) -> tuple[float, float]:
    pair = [
        run.metrics["test"].get(name, {}).get(finding) for name in ("sensitivity", "specificity")
    ]
    return tuple(map(number_or_nan, pair))  # type: ignore[return-value]


def _methods_in_roc(runs: Sequence[RecordedRun], focus: str) -> list[str]:
    """The method in focus, and the best of the others."""
    areas = grouped((run.method, run.test("auc")) for run in runs)
    return sorted(areas, key=lambda name: (name != focus, -float(np.mean(areas[name]))))[
        :MOST_ROC_CURVES
    ]


def gains_picture(found: Mapping[str, Interval], method: str, label: str, name: str) -> Picture:
    figure, axes = plots.panel_figure(height=_panel_height(len(found)))
    gains = {client: (one.estimate, one.low, one.high) for client, one in found.items()}
    plots.draw_gains(axes, gains, f"gain in {label}")
    axes.set_title(f"{plots.short_label(method, 30)} over training alone")
    return Picture(
        f"{name}-gains", figure, f"Gain in {label} of {method} over training alone, by client"
    )

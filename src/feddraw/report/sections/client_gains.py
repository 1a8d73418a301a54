"""What each client gains over the model that it trains alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from feddraw.analysis import plots
from feddraw.analysis.bootstrap import Interval
from feddraw.analysis.metrics import macro
from feddraw.analysis.statistics_in_words import interval_from_to
from feddraw.report.blocks import (
    Block,
    Cell,
    Gallery,
    Heading,
    Paragraph,
    Picture,
    ReportTable,
)
from feddraw.report.cells import number_cell
from feddraw.report.pictures import panel_height
from feddraw.report.runs import RecordedRun, clients_with_metrics, has_own_model
from feddraw.report.statistics import MeanOverRepeats, Report
from feddraw.text import grouped, join_names, slug


@dataclass(frozen=True)
class ClientGain:
    """The metric of a method minus that of the model the client trained alone, over repeats that
    both have, and over the findings that the client labels: of the others its own model knows
    nothing, so a gain in them says nothing about what it learnt.
    """

    client: str
    method: str
    alone: MeanOverRepeats
    gain: MeanOverRepeats
    interval: Interval | None  # over patients
    findings: tuple[str, ...]  # that the client labels, in any repeat
    both_classes: bool  # whether it has a positive and a negative image of any of them


def section(report: Report, scenario: str, metric: str) -> Iterator[Block]:
    gains = list(gains_over_alone(report, scenario, metric))
    if not gains:
        return
    label = report.metrics[metric]
    name = f"{slug(scenario)}-{metric}"
    yield Heading(f"Does a client gain? {label} in {scenario}", 3)
    yield Paragraph(
        "Metric of the model that the client would use minus that of the one it trained alone, on"
        " the same test images."
    )
    caption = f"Gain in test {label} over training alone, {scenario}"
    yield _table(gains, caption, label=f"gains-{name}")
    findings = {finding for run in report.paired_runs(scenario) for finding in run.findings}
    partly = {gain.client: gain.findings for gain in gains if set(gain.findings) < findings}
    if partly:
        labelled = "; ".join(f"{client}: {join_names(names)}" for client, names in partly.items())
        yield Paragraph(f"Over the findings that the client labels, where not all: {labelled}.")
    intervals = {
        gain.client: gain.interval
        for gain in gains
        if gain.method == report.focus and gain.interval is not None
    }
    if intervals:
        picture = _picture(intervals, report.focus, label, name)
        yield Gallery([picture], "95 % intervals, paired.")
    on_holdout = list(gains_over_alone(report, scenario, metric, "holdout"))
    if on_holdout:
        yield Paragraph(
            "On the images that each client kept back for itself (few, so a client's number moves"
            " by chance):"
        )
        yield _table(on_holdout, f"Gain in {label} on the client's own images, {scenario}")


def gains_over_alone(
    report: Report, scenario: str, metric: str, split: str = "test"
) -> Iterator[ClientGain]:
    """Of every client and method: on the common test images, or (`holdout`) on the client's own."""
    runs = report.paired_runs(scenario, metric=metric)
    draws = report.draws[scenario]
    alone = {run.repeat: run for run in runs if run.name == "alone"}
    every_client = [client for run in alone.values() for client in clients_with_metrics(run)]
    clients = list(dict.fromkeys(every_client))
    by_method = grouped(
        (run.method, run) for run in runs if not run.reference and run.repeat in alone
    )
    for client in clients:
        for method, members in by_method.items():
            own = [alone[run.repeat] for run in members]
            labelled = [run.labelled_by(client) for run in own]
            before = [
                _mean_over(findings, run, metric, client, split)
                for findings, run in zip(labelled, own, strict=True)
            ]
            after = [
                _mean_over(findings, run, metric, _model_used(run, client, split), split)
                for findings, run in zip(labelled, members, strict=True)
            ]
            gain = MeanOverRepeats.of([a - b for a, b in zip(after, before, strict=True)])
            if not gain.count:
                continue
            over_patients = None
            drawn = draws.by_metric[metric]
            if split == "test" and client in drawn.alone and method in drawn.by_method:
                over_patients = draws.gain(metric, method, client)
            yield ClientGain(
                client=client,
                method=method,
                alone=MeanOverRepeats.of(before),
                gain=gain,
                interval=over_patients,
                findings=tuple(dict.fromkeys(chain.from_iterable(labelled))),
                both_classes=any(run.has_both_classes(client) for run in own),
            )


def _model_used(run: RecordedRun, client: str, split: str) -> str:
    """Whose metrics are those of the model that the client would use: on the common test images
    the common model's (no name), unless the client has one of its own.
    """
    return "" if split == "test" and not has_own_model(run, client) else client


def _mean_over(
    findings: Sequence[str], run: RecordedRun, metric: str, client: str, split: str
) -> float:
    """The macro metric over some of the findings."""
    if set(findings) == set(run.findings):
        return run.test(metric, client=client, split=split)
    return macro(run.test(metric, finding, client, split) for finding in findings)


def _table(gains: Sequence[ClientGain], caption: str, label: str = "") -> ReportTable:
    methods = list(dict.fromkeys(gain.method for gain in gains))
    rows = []
    for client, of_client in grouped((gain.client, gain) for gain in gains).items():
        by_method = {gain.method: _gain_cell(gain) for gain in of_client}
        cells = [by_method.get(method, Cell("not run")) for method in methods]
        rows.append([Cell(client), number_cell(of_client[0].alone.value), *cells])
    note = "Mean over the seeds that all methods have."
    if any(gain.interval for gain in gains):
        note += " 95 % interval over patients in brackets."
    return ReportTable(
        caption=caption,
        header=["client", "alone", *methods],
        rows=rows,
        note=note,
        label=label,
    )


def _gain_cell(gain: ClientGain) -> Cell:
    text = f"{gain.gain.value:+.4f}"
    if gain.interval is not None:
        text += f" [{interval_from_to(gain.interval)}]"
    return Cell(text, gain.gain.value)


def _picture(intervals: dict[str, Interval], method: str, label: str, name: str) -> Picture:
    figure, axes = plots.panel_figure(height=panel_height(len(intervals)))
    gains = {
        client: (interval.estimate, interval.low, interval.high)
        for client, interval in intervals.items()
    }
    plots.draw_gains(axes, gains, f"gain in {label}")
    axes.set_title(f"{plots.short_label(method, 30)} over training alone")
    words = f"Gain in {label} of {method} over training alone, by client"
    return Picture(f"{name}-gains", figure, words)

"""What each client gains over the model that it trains alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from feddraw.analysis.bootstrap import Interval
from feddraw.analysis.statistics_in_words import interval_from_to
from feddraw.report import pictures
from feddraw.report.blocks import Block, Cell, Gallery, Heading, Paragraph, ReportTable
from feddraw.report.report_statistics import MeanOverRepeats, Report
from feddraw.report.table_cells import number_cell
from feddraw.results.recorded_run import RecordedRun
from feddraw.text import grouped, slug


@dataclass(frozen=True)
class ClientGain:
    """The metric of a method minus that of the model the client trained alone, over repeats that
    both have.
    """

    client: str
    method: str
    alone: MeanOverRepeats
    gain: MeanOverRepeats
    interval: Interval | None


def client_gains_section(report: Report, scenario: str, metric: str, label: str) -> Iterator[Block]:
    found = list(gains_over_alone(report, scenario, metric))
    if not found:
        return
    name = f"{slug(scenario)}-{metric}"
    what = (
        "Metric of the model that the client would use minus that of the one it trained alone, on"
        " the same test images."
    )
    yield Heading(f"Does a client gain? {label} in {scenario}", 3)
    yield Paragraph(what)
    yield _gain_table(
        found, f"Gain in test {label} over training alone, {scenario}", f"gains-{name}"
    )
    focus = [gain for gain in found if gain.method == report.focus]
    drawn = {gain.client: gain.interval for gain in focus if gain.interval is not None}
    if drawn:
        yield Gallery(
            [pictures.gains_picture(drawn, report.focus, label, name)], "95 % intervals, paired."
        )
    held = list(gains_over_alone(report, scenario, metric, "holdout"))
    if held:
        own = (
            "On the images that each client kept back for itself (few, so a client's number moves"
            " by chance):"
        )
        yield Paragraph(own)
        yield _gain_table(held, f"Gain in {label} on the client's own images, {scenario}")


def _gain_table(found: Sequence[ClientGain], caption: str, label: str = "") -> ReportTable:
    methods = list(dict.fromkeys(gain.method for gain in found))
    clients = list(dict.fromkeys(gain.client for gain in found))
    by = {(gain.client, gain.method): gain for gain in found}
    rows = []
    for client in clients:
        alone = next(gain.alone for gain in found if gain.client == client)
        changes = [
            _gain_cell(by[client, method]) if (client, method) in by else Cell("not run")
            for method in methods
        ]
        rows.append([Cell(client), number_cell(alone.value), *changes])
    note = "Mean over seeds" + (
        "; 95 % interval in brackets." if any(gain.interval for gain in found) else "."
    )
    return ReportTable(caption, ["client", "alone", *methods], rows, (), note, label)


def _gain_cell(gain: ClientGain) -> Cell:
    text = f"{gain.gain.value:+.4f}"
    return Cell(
        text + (f" [{interval_from_to(gain.interval)}]" if gain.interval else ""), gain.gain.value
    )


def _whose_model(run: RecordedRun, client: str, split: str) -> str:
    """On the common test images the common model, unless the client has one of its own."""
    return client if split != "test" or "test" in run.metrics["clients"].get(client, {}) else ""


def gains_over_alone(
    report: Report, scenario: str, metric: str, split: str = "test"
) -> Iterator[ClientGain]:
    """Of every client and method: on the common test images, or (`holdout`) on the client's own."""
    runs, draws = report.collection.of(scenario), report.draws[scenario]
    own = {run.repeat: run for run in runs if run.name == "alone"}
    clients = list(
        dict.fromkeys(client for run in own.values() for client in run.metrics["clients"])
    )
    methods = grouped((run.method, run) for run in runs if not run.reference and run.repeat in own)
    for client in clients:
        for method, members in methods.items():
            before = [own[run.repeat].test(metric, client=client, split=split) for run in members]
            after = [
                run.test(metric, client=_whose_model(run, client, split), split=split)
                for run in members
            ]
            change = MeanOverRepeats.of([a - b for a, b in zip(after, before, strict=True)])
            compared = (
                split == "test"
                and client in draws.clients[metric]
                and method in draws.methods[metric]
            )
            if change.count:
                over_patients = draws.gain(metric, method, client) if compared else None
                yield ClientGain(client, method, MeanOverRepeats.of(before), change, over_patients)

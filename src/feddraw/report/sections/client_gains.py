"""What each client gains over the model that it trains alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feddraw.naming import slug
from feddraw.report import pictures
from feddraw.report.blocks import Block, Cell, Gallery, Heading, Table, Text, numeral
from feddraw.report.cells import span
from feddraw.report.evidence import Gain, Report


def client_gains(report: Report, scenario: str, metric: str, label: str) -> Iterator[Block]:
    found = report.gains(scenario, metric)
    if not found:
        return
    yield Heading(f"Does a client gain? {label} in {scenario}", 3)
    yield Text("Metric of the common model minus that of the model the client trained alone, on the same test images.")
    yield _gain_table(
        found, f"Gain in test {label} over training alone, {scenario}", f"gains-{slug(scenario)}-{metric}"
    )
    focus = [gain for gain in found if gain.method == report.focus]
    drawn = {gain.client: gain.interval for gain in focus if gain.interval is not None}
    if drawn:
        yield Gallery(
            [pictures.gains(drawn, report.focus, label, f"{slug(scenario)}-{metric}")], "95 % intervals, paired."
        )
    held = report.gains(scenario, metric, "holdout")
    if held:
        yield Text("On the images that each client kept back for itself (few, so a client's number moves by chance):")
        yield _gain_table(held, f"Gain in {label} on the client's own images, {scenario}")


def _gain_table(found: Sequence[Gain], caption: str, label: str = "") -> Table:
    methods = list(dict.fromkeys(gain.method for gain in found))
    clients = list(dict.fromkeys(gain.client for gain in found))
    by = {(gain.client, gain.method): gain for gain in found}
    rows = []
    for client in clients:
        alone = next(gain.alone for gain in found if gain.client == client)
        changes = [_gain_cell(by[client, method]) if (client, method) in by else Cell("not run") for method in methods]
        rows.append([Cell(client), numeral(alone.value), *changes])
    note = "Mean over seeds" + ("; 95 % interval in brackets." if any(gain.interval for gain in found) else ".")
    return Table(caption, ["client", "alone", *methods], rows, (), note, label)


def _gain_cell(gain: Gain) -> Cell:
    text = f"{gain.gain.value:+.4f}"
    return Cell(text + (f" [{span(gain.interval)}]" if gain.interval else ""), gain.gain.value)

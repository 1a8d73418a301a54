"""Run folders to one self-contained page: the metrics side by side, and who counted how much in every round."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from feddraw.plots import draw_lines, draw_weights
from feddraw.results import RunFolder, read_csv, read_json, read_jsonl, read_toml, write_whole

METRICS = {"auc": "AUC", "gm": "GM"}


@dataclass(frozen=True, eq=False)
class Finished:
    """A finished run, read back."""

    name: str
    settings: Mapping[str, Any]
    metrics: Mapping[str, Any]
    weights: Mapping[str, Sequence[float]]  # client to a weight a round
    validation: Sequence[float]  # macro AUC a round


def read_run(path: Path) -> Finished:
    folder = RunFolder(path)
    settings = read_toml(folder.settings)
    weights: dict[str, list[float]] = {}
    for entry in read_csv(folder.ledger):
        weights.setdefault(entry["client"], []).append(float(entry["weight"]))
    areas = [
        math.nan if (area := entry["validation"]["macro"]) is None else area for entry in read_jsonl(folder.rounds)
    ]
    metrics = read_json(folder.metrics)
    return Finished(settings["method"]["name"], settings, metrics, weights, areas)


def write_report(folders: Sequence[Path], target: Path, *, title: str, command: str) -> None:
    """One page for several runs of one scenario."""
    runs = [read_run(folder) for folder in folders]
    settings = runs[0].settings
    synthetic = settings["data"]["name"] == "phantom"
    note = "Synthetic phantom radiographs, no patients. " if synthetic else ""
    facts = f"Scenario {settings['scenario']['name']}, {settings['rounds']} rounds, seed {settings['seed']}"
    top = max(max(values) for run in runs for values in run.weights.values())
    blocks = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{note}Research software, not a medical device.</p>",
        f"<p>{html.escape(facts)}. Made by <code>{html.escape(command)}</code>.</p>",
        "<h2>Test metrics</h2>",
        _table(runs),
        "<h2>Who counted how much</h2>",
        f'<div class="row">{"".join(_weights(run, top) for run in runs)}</div>',
        "<h2>Validation AUC by round</h2>",
        _figure(_curves(runs), "Macro validation AUC of each method by round"),
    ]
    page = PAGE.format(title=html.escape(title), style=STYLE, body="\n".join(blocks))
    write_whole(target, page.encode())


def table_of(runs: Sequence[Finished]) -> list[list[str]]:
    """A row a method: macro AUC and GM, then each finding's AUC; the best of a column with a star."""
    findings = list(runs[0].metrics["test"]["auc"]["per_class"])
    columns = [[run.metrics["test"][kind]["macro"] for run in runs] for kind in METRICS]
    columns += [[run.metrics["test"]["auc"]["per_class"][name] for run in runs] for name in findings]
    cells = [_starred(column) for column in columns]
    header = ["method", *METRICS.values(), *(f"AUC {name}" for name in findings)]
    return [header, *([run.name, *row] for run, row in zip(runs, zip(*cells, strict=True), strict=True))]


def _starred(column: Sequence[float | None]) -> list[str]:
    best = max((value for value in column if value is not None), default=None)
    return ["undefined" if v is None else f"{v:.4f}" + ("*" if v == best else "") for v in column]


def _table(runs: Sequence[Finished]) -> str:
    header, *rows = table_of(runs)
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
    body = ""
    for name, *cells in rows:
        numbers = "".join(f"<td>{cell}</td>" for cell in cells)
        body += f'<tr><th scope="row">{html.escape(name)}</th>{numbers}</tr>'
    note = "<p>* best of the column. One run each: a difference here is not evidence of a difference.</p>"
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}'


def _weights(run: Finished, top: float) -> str:
    figure = Figure(figsize=(4, 3.2), layout="constrained")
    axes = figure.subplots()
    draw_weights(axes, run.weights, title=run.name)
    axes.set_ylim(0, 1.05 * top)  # one scale for all methods
    return _figure(figure, f"Weight of each client in every round under {run.name}")


def _curves(runs: Sequence[Finished]) -> Figure:
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    draw_lines(axes, {run.name: run.validation for run in runs})
    axes.set_ylabel("validation AUC")
    axes.legend(fontsize=7, frameon=False)
    return figure


def _figure(figure: Figure, description: str) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None}, transparent=False)
    svg = text.getvalue()
    drawing = svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}"', 1)
    return f'<figure class="wide">{drawing}</figure>'


STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --line: #ccc; }
@media (prefers-color-scheme: dark) { :root { --ink: #eee; --paper: #16181c; --line: #444; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
main { max-width: 70rem; margin: auto; padding: .5rem; }
.wide { overflow-x: auto; margin: 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: right; }
.row { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: 1rem; }
th:first-child { text-align: left; }
figure svg { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
code { overflow-wrap: anywhere; }
"""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body><main>{body}</main></body></html>
"""

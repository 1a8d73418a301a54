"""`feddraw scenario`: the ways to split images between clients, and what each gives for a table of
labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from feddraw.cli.terminal import console, print_json, print_line, status_line, table
from feddraw.errors import UserError
from feddraw.system.file_writing import json_values
from feddraw.text import folder_name

if TYPE_CHECKING:
    from feddraw.data.dataset import Labels
    from feddraw.data.scenarios.partition import Partition
    from feddraw.data.scenarios.skew_measures import SizeMeasures, Skew
    from feddraw.experiment.scenario_check import ScenarioCheck

app = typer.Typer(
    name="scenario",
    no_args_is_help=True,
    help="Show, save and check how a scenario splits images between clients.",
)

ScenarioName = Annotated[
    str,
    Argument(help="CHX-1 to CHX-7, CHM-1 to CHM-5, iid, …, NAME.json or package.module:function."),
]
LabelTable = Annotated[
    Path | None,
    Option(
        "--labels",
        help="Label table: CheXpert's train.csv (also .gz), or an .npz in MedMNIST's layout.",
    ),
]
ScenarioScale = Annotated[
    float, Option(help="Number of images relative to the paper's scenario (1 = all).")
]
ScenarioSeed = Annotated[int, Option(help="Seed of the split between clients.")]
ScenarioSettings = Annotated[
    list[str] | None,
    Option("--set", help="KEY=VALUE: change an option of the scenario (repeatable)."),
]
Json = Annotated[bool, Option("--json", help="Print one JSON document.")]

Document = dict[str, Any]  # for JSON
HOW_TO_COUNT = "add --labels FILE (CheXpert's train.csv, also .gz, or an .npz in MedMNIST's layout)"


@app.command("list")
def list_scenarios(
    *,
    wide: Annotated[bool, Option("--wide", help="Show their options, too.")] = False,
    json: Json = False,
) -> None:
    """List the scenarios, one line each."""
    from feddraw.cli import listing

    listing.list_("scenarios", wide=wide, json=json)


@app.command("show")
def show_scenario(
    name: ScenarioName,
    *,
    labels: LabelTable = None,
    scale: ScenarioScale = 1.0,
    seed: ScenarioSeed = 0,
    set_: ScenarioSettings = None,
    json: Json = False,
    plot: Annotated[
        Path | None,
        Option(help="Draw sizes and label distribution to this file (.png, .svg or .pdf)."),
    ] = None,
) -> None:
    """Show counts per client and finding, and how much the clients differ."""
    if labels is None:
        if plot:
            raise UserError(f"--plot needs a label table: {HOW_TO_COUNT}")
        _show_sizes(name, scale, json)
        return
    from feddraw.data.scenarios.skew_measures import measure_skew

    table, partition = _partition(name, labels, scale, seed, set_)
    measures = measure_skew(partition, table)
    if plot:
        from feddraw.analysis.partition_plot import partition_figure
        from feddraw.analysis.plots import save_figure

        save_figure(partition_figure(partition, table), plot)
    if json:
        print_json(partition_document(partition, table, measures))
    else:
        _print_partition(partition, table, measures)


@app.command("build")
def build_scenario(
    name: ScenarioName,
    *,
    labels: LabelTable = None,
    scale: ScenarioScale = 1.0,
    seed: ScenarioSeed = 0,
    set_: ScenarioSettings = None,
    out: Annotated[
        Path | None, Option(help="File to write (default: NAME.json in this folder).")
    ] = None,
) -> None:
    """Write each client's image names and their SHA-256 to a file that can be a scenario."""
    from feddraw.data.scenarios.index_list import write_index_list
    from feddraw.data.scenarios.paper_scenarios import paper_dataset_of

    if labels is None:
        raise UserError(f"build needs a label table: {HOW_TO_COUNT}")
    table, partition = _partition(name, labels, scale, seed, set_)
    path = out or Path(f"{folder_name(partition.scenario.replace(':', '.'))}.json")
    settings = {
        "dataset": paper_dataset_of(partition.scenario),
        "seed": seed,
        "scale": scale,
        "options": scenario_options(set_),
    }
    write_index_list(path, partition, table, settings)
    print_line(f"{path}: {partition.sizes.sum():,} images at {len(partition.shards)} clients")
    print_line(f"sha256 {partition.sha256}")


@app.command("check")
def check_scenario(
    name: ScenarioName,
    *,
    data: Annotated[
        str,
        Option(
            help="Data set, one of `feddraw list data` (phantom, cells, chestmnist, …), or a path."
        ),
    ] = "phantom",
    size: Annotated[int, Option(help="Height and width of the images in pixels.")] = 32,
    scale: Annotated[
        float | None,
        Option(help="Number of images relative to the scenario (default: 0.045 for the paper's)."),
    ] = None,
    steps: Annotated[
        int,
        Option(help="Optimiser steps of each client alone, and of all clients' images together."),
    ] = 300,
    seed: ScenarioSeed = 0,
    workers: Annotated[int, Option(help="Worker processes; 0: one per core.")] = 0,
    set_: Annotated[
        list[str] | None,
        Option("--set", help="KEY=VALUE: change any setting, e.g. training.lr=1e-4 (repeatable)."),
    ] = None,
    json: Json = False,
) -> None:
    """Train every client alone: are small clients better than large ones, as in the paper?"""
    if steps < 1:
        raise UserError(f"--steps must be at least 1, not {steps}")
    from feddraw.experiment import scenario_check
    from feddraw.experiment.settings import Experiment, parse_settings

    settings: dict[str, Any] = {
        "scenario": name,
        "data": data,
        "data.size": size,
        "seed": seed,
        "workers": workers,
    }
    if scale is not None:
        settings["scenario.scale"] = scale
    experiment = Experiment().with_settings(settings | parse_settings(set_ or []))
    with status_line("training each client alone") as say:
        check = scenario_check.check_scenario(
            experiment,
            steps,
            lambda _, update: say(f"client {update.client + 1} has trained alone"),
        )
    if json:
        print_json(_check_document(check))
    else:
        _print_check(check)


def _check_document(check: ScenarioCheck) -> Document:
    document = asdict(check)
    document["accepted"] = check.accepted
    document["margin"] = check.margin
    return dict(json_values(document))


def _print_check(check: ScenarioCheck) -> None:
    rows = []
    for client in check.clients:
        kind = "small" if client.small else "large"
        rows.append([client.client, f"{client.size:,}", kind, f"{client.auc:.4f}"])
    together = check.together
    rows.append([together.client, f"{together.size:,}", "", f"{together.auc:.4f}"])
    print_line(f"{check.scenario}: every client alone for {check.steps} steps")
    console().print(table(["client", "images", "", "validation AUC"], rows))
    if math.isnan(check.margin):
        print_line("no small and large clients to compare")
    else:
        outcome = "accepted" if check.accepted else "not accepted"
        print_line(f"{outcome}: worst small client minus best large client {check.margin:+.4f} AUC")


def partition_document(partition: Partition, labels: Labels, measures: Skew) -> Document:
    """The document that `show --json` prints."""
    from feddraw.data.scenarios.skew_measures import label_counts

    names = [shard.client for shard in partition.shards]
    sizes = partition.sizes.tolist()
    counts = label_counts(partition, labels).tolist()
    clients = []
    for name, size, (*positives, none) in zip(names, sizes, counts, strict=True):
        by_finding = dict(zip(labels.findings, positives, strict=True))
        clients.append({"client": name, "size": size, "positives": by_finding, "none": none})
    heterogeneity = {
        **asdict(measures.sizes),
        "jensen_shannon": dict(zip(names, measures.jensen_shannon, strict=True)),
        "earth_movers": dict(zip(names, measures.earth_movers, strict=True)),
        "shared_patients": measures.shared_patients,
    }
    return _scenario_document(partition.scenario, partition.sha256, clients, heterogeneity)


def _scenario_document(
    scenario: str, sha256: str | None, clients: list[Document], measures: Document
) -> Document:
    from feddraw.data.scenarios.paper_scenarios import paper_dataset_of

    return {
        "scenario": scenario,
        "dataset": paper_dataset_of(scenario),
        "total": sum(client["size"] for client in clients),
        "sha256": sha256,
        "clients": clients,
        "heterogeneity": measures,
    }


def scenario_options(settings: list[str] | None) -> dict[str, Any]:
    """KEY=VALUE as options of a scenario; KEY may begin with `scenario.` as in an experiment's
    file.
    """
    from feddraw.experiment.settings import parse_settings

    return {
        key.removeprefix("scenario."): value
        for key, value in parse_settings(settings or []).items()
    }


def _partition(
    name: str, path: Path, scale: float, seed: int, set_: list[str] | None
) -> tuple[Labels, Partition]:
    """The labels of a table, and how the scenario splits its images between clients."""
    from feddraw.data.dataset_by_name import read_training_labels
    from feddraw.data.scenarios.scenario_by_name import make_partition

    labels = read_training_labels(path)
    options = scenario_options(set_)
    return labels, make_partition(name, labels, seed=seed, scale=scale, options=options)


def _show_sizes(name: str, scale: float, json: bool) -> None:
    """What is known of a scenario without labels: for the paper's twelve, the sizes."""
    from feddraw.data.scenarios.scenario_by_name import known_client_sizes
    from feddraw.data.scenarios.skew_measures import measure_sizes

    scenario, sizes = known_client_sizes(name, scale)
    clients = {f"C{number}": size for number, size in enumerate(sizes, start=1)}
    measures = measure_sizes(sizes)
    if json:
        unknown = {"positives": None, "none": None}
        listed = [{"client": client, "size": size, **unknown} for client, size in clients.items()]
        print_json(_scenario_document(scenario, None, listed, asdict(measures)))
        return
    rows = [[client, f"{size:,}", f"{size / sum(sizes):.1%}"] for client, size in clients.items()]
    print_line(_heading(scenario, sizes))
    console().print(table(["client", "images", "share"], rows))
    print_line(_size_measures_sentence(measures))
    print_line(f"for counts per finding and the SHA-256, {HOW_TO_COUNT}")


def _print_partition(partition: Partition, labels: Labels, measures: Skew) -> None:
    from feddraw.data.scenarios.skew_measures import label_counts

    names = [shard.client for shard in partition.shards]
    sizes = partition.sizes.tolist()
    counts = label_counts(partition, labels).tolist()
    rows = []
    distances = []
    for place, (name, size) in enumerate(zip(names, sizes, strict=True)):
        shares = [f"{count:,} ({count / size:.1%})" for count in counts[place]]
        rows.append([name, f"{size:,}", *shares])
        jensen_shannon = f"{measures.jensen_shannon[place]:.3f}"
        earth_movers = f"{measures.earth_movers[place]:.3f}"
        distances.append([name, f"{size / sum(sizes):.1%}", jensen_shannon, earth_movers])
    label_table = table(["client", "images", *labels.findings, "none"], rows)
    for column in label_table.columns:
        column.overflow = "fold"  # in a narrow terminal no finding loses its name
    print_line(_heading(partition.scenario, sizes))
    console().print(label_table)
    print_line("distance of each client's label distribution from that of all clients together:")
    console().print(
        table(["client", "share of images", "Jensen–Shannon", "earth mover's"], distances)
    )
    print_line(_size_measures_sentence(measures.sizes))
    shared = "not known" if measures.shared_patients is None else f"{measures.shared_patients:,}"
    print_line(f"patients at more than one client: {shared}")
    print_line(f"sha256 {partition.sha256}")


def _heading(scenario: str, sizes: Sequence[int]) -> str:
    from feddraw.data.scenarios.scenario_by_name import describe_scenario, scenario_names

    description = ""
    if scenario in scenario_names():
        description = f" ({describe_scenario(scenario)})"
    return f"{scenario}{description}: {sum(sizes):,} images at {len(sizes)} clients"


def _size_measures_sentence(measures: SizeMeasures) -> str:
    return (
        f"largest / smallest client {measures.size_ratio:.2f}, Gini {measures.gini:.3f}, smallest"
        f" share {measures.smallest_share:.1%}, effective clients {measures.effective_clients:.2f}"
    )

"""What was run: commands, settings, partitions, versions, and every run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from feddraw import catalog
from feddraw.report.blocks import (
    Block,
    Bullets,
    Cell,
    CodeBlock,
    Fold,
    Heading,
    Paragraph,
    ReportTable,
)
from feddraw.report.cells import number_cell
from feddraw.report.runs import RecordedRun, partition_hash, versions_and_machine
from feddraw.report.statistics import Report
from feddraw.results.run_reader import OWN_FOLDERS
from feddraw.text import grouped, join_names

Runs = Sequence[RecordedRun]
MOST_COMMANDS = 20
MOST_METHODS_NAMED = 3  # behind a setting's value


def section(report: Report) -> Iterator[Block]:
    runs = report.collection.runs
    yield Heading("What was run", anchor="record")
    yield Paragraph(
        f"This report was made by the command below from {len(runs)} run{'s' * (len(runs) != 1)}."
    )
    yield CodeBlock(report.command)
    yield Fold("How to run it again", list(_how_to_run_again(runs, report.folders)))
    if methods := _methods_in_words(runs):
        yield Fold("What the methods do", [Bullets(methods)])
    yield Fold("Settings", [_settings_table(runs)])
    yield Fold("Partitions", [_partition_table(runs)])
    yield Fold("Versions", [_version_table(runs)])
    yield Fold("Every run", [_run_table(runs, report)])


def _how_to_run_again(runs: Runs, folders: Sequence[Path]) -> Iterator[Block]:
    at_sites = [run for run in runs if run.scenario == OWN_FOLDERS]
    here = [run for run in runs if run.scenario != OWN_FOLDERS]
    if here:
        yield Paragraph(
            "Each run's folder holds its settings. If your data are elsewhere, change data.path"
            f" there first. Type these commands in {_folder_to_type_in(here, folders)}:"
        )
        yield CodeBlock(_commands_to_run_again(here, folders))
    if at_sites:
        names = join_names([_typed_path(run.path, folders) for run in at_sites])
        yield Paragraph(
            f"The images of {names} are at the sites of a federation. On its server, while the"
            " sites are connected, with another folder as out in run.toml:"
        )
        yield CodeBlock("flwr run app consortium --stream --run-config run.toml")


def shown_path(path: Path, folders: Sequence[Path]) -> str:
    """Where a run is, from the folder that was named on: a page that people send on tells nothing
    of what is above.
    """
    for folder in folders:
        if path.is_relative_to(folder):
            return str(Path(folder.absolute().name) / path.relative_to(folder))
    return path.name


def _is_below_current_folder(path: Path) -> bool:
    """Whether a path as it was typed tells nothing of what is above the current folder."""
    return not path.is_absolute() and ".." not in path.parts


def _typed_path(path: Path, folders: Sequence[Path]) -> str:
    """Where a run is, from the folder in which its command is to be typed."""
    return str(path) if _is_below_current_folder(path) else shown_path(path, folders)


def _folder_to_type_in(runs: Runs, folders: Sequence[Path]) -> str:
    """In words, where the paths of the commands begin."""
    if all(_is_below_current_folder(run.path) for run in runs):
        return "the folder in which the command above was typed"
    elsewhere = [folder for folder in folders if not _is_below_current_folder(folder)]
    return f"the folder that holds {join_names([folder.absolute().name for folder in elsewhere])}"


def _commands_to_run_again(runs: Runs, folders: Sequence[Path]) -> str:
    lines = []
    for run in runs[:MOST_COMMANDS]:
        settings = shlex.quote(f"{_typed_path(run.path, folders)}/experiment.toml")
        out = shlex.quote(f"again/{run.path.name}")
        lines.append(f"feddraw run {settings} --out {out}")
    if len(runs) > MOST_COMMANDS:
        lines.append(f"# … and {len(runs) - MOST_COMMANDS} more")
    return "\n".join(lines)


def _methods_in_words(runs: Runs) -> list[str]:
    """The first sentence of each method of the catalogue."""
    known = set(catalog.names("methods"))
    names = dict.fromkeys(run.name for run in runs if run.name in known)
    return [f"{name}: {catalog.first_doc_line('methods', name)}" for name in names]


def _settings_table(runs: Runs) -> ReportTable:
    """Each setting with its value, or its values and who has them."""
    rows = []
    for key in sorted({key for run in runs for key in run.flat}):
        methods_by_value = grouped(
            (_without_path(run.flat[key]), run.method) for run in runs if key in run.flat
        )
        parts = []
        for value, methods in methods_by_value.items():
            names = list(dict.fromkeys(methods))
            named = len(methods_by_value) > 1 and len(names) <= MOST_METHODS_NAMED
            parts.append(f"{value} ({', '.join(names)})" if named else value)
        rows.append([Cell(key), Cell("; ".join(parts))])
    return ReportTable("Settings of all runs", ["setting", "value"], rows)


def _without_path(value: object) -> str:
    """A setting's value; where data or weights lie on somebody's machine is not for the readers of
    a page.
    """
    if isinstance(value, str) and "/" in value:
        return "(a path on the machine of the run)"
    return str(value)


def _partition_table(runs: Runs) -> ReportTable:
    partitions = dict.fromkeys((run.scenario, run.repeat, partition_hash(run)) for run in runs)
    return ReportTable(
        caption="SHA-256 of each partition (images of each client)",
        header=["scenario", "seed", "partition"],
        rows=[list(map(Cell, partition)) for partition in partitions],
    )


def _version_table(runs: Runs) -> ReportTable:
    versions: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, version in versions_and_machine(run):
            versions.setdefault(name, {})[version] = None
    rows = [[Cell(name), Cell(", ".join(several))] for name, several in versions.items()]
    return ReportTable("Versions, machines, network", ["what", "version"], rows)


def _run_table(runs: Runs, report: Report) -> ReportTable:
    rows = []
    for run in runs:
        names = (shown_path(run.path, report.folders), run.scenario, run.method, run.repeat)
        metrics = [number_cell(run.test(metric)) for metric in report.metrics]
        rows.append([*map(Cell, names), *metrics])
    header = ["folder", "scenario", "method", "seed", *report.metrics.values()]
    return ReportTable("Every run", header, rows)

"""What was run: commands, settings, partitions, versions, and every run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from feddraw.report.blocks import Block, Cell, CodeBlock, Fold, Heading, Paragraph, ReportTable
from feddraw.report.table_cells import number_cell
from feddraw.results.outcome_settings import PRECISION_SETTINGS, outcome_device_kind
from feddraw.results.recorded_run import RecordedRun
from feddraw.results.run_collection import RunCollection
from feddraw.text import grouped


def what_was_run_section(
    collection: RunCollection, command: str, folders: Sequence[Path]
) -> Iterator[Block]:
    """How the report and its runs were made."""
    yield Heading("What was run", anchor="record")
    yield Paragraph(f"This report was made by the command below from {len(collection.runs)} runs.")
    yield CodeBlock(command)
    how = (
        "Each run's folder holds its settings. If your data are elsewhere, change data.path there"
        " first:"
    )
    again = _commands_to_run_again(collection.runs, folders)
    yield Fold("How to run it again", [Paragraph(how), CodeBlock(again)])
    yield Fold("Settings", [_settings_table(collection.runs)])
    yield Fold("Partitions", [_partition_table(collection.runs)])
    yield Fold("Versions", [_version_table(collection.runs)])
    yield Fold("Every run", [_run_table(collection.runs, folders)])


def shown_path(path: Path, folders: Sequence[Path]) -> str:
    """Where a run is, from the folder that was named on: a page that people send on tells nothing
    of what is above.
    """
    for folder in folders:
        if path.is_relative_to(folder):
            return str(Path(folder.absolute().name) / path.relative_to(folder))
    return path.name


def _commands_to_run_again(runs: Sequence[RecordedRun], folders: Sequence[Path]) -> str:
    lines = [
        f"feddraw run {shlex.quote(f'{shown_path(run.path, folders)}/experiment.toml')} "
        f"--out {shlex.quote(f'again/{run.path.name}')}"
        for run in runs[:20]
    ]
    return "\n".join([*lines, *([f"# … and {len(runs) - 20} more"] if len(runs) > 20 else [])])


def _settings_table(runs: Sequence[RecordedRun]) -> ReportTable:
    """Each setting with its value, or its values and who has them."""
    rows = []
    for key in sorted({key for run in runs for key in run.flat}):
        values = grouped(
            (_setting_without_path(run.flat[key]), run.method) for run in runs if key in run.flat
        )
        said = "; ".join(
            _value_with_methods(value, names, len(values)) for value, names in values.items()
        )
        rows.append([Cell(key), Cell(said)])
    return ReportTable("Settings of all runs", ["setting", "value"], rows)


def _setting_without_path(value: object) -> str:
    """A setting's value; where data or weights lie on somebody's machine is not for the readers of
    a page.
    """
    return (
        "(a path on the machine of the run)"
        if isinstance(value, str) and "/" in value
        else str(value)
    )


def _value_with_methods(value: str, methods: Sequence[str], values: int) -> str:
    names = list(dict.fromkeys(methods))
    return value if values == 1 or len(names) > 3 else f"{value} ({', '.join(names)})"


def _partition_table(runs: Sequence[RecordedRun]) -> ReportTable:
    hashes = {
        (run.scenario, run.repeat, str(run.partition.get("sha256", "unknown"))): None
        for run in runs
    }
    rows = [[Cell(scenario), Cell(repeat), Cell(sha)] for scenario, repeat, sha in hashes]
    return ReportTable(
        "SHA-256 of each partition (images of each client)", ["scenario", "seed", "partition"], rows
    )


def _version_table(runs: Sequence[RecordedRun]) -> ReportTable:
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        about = run.environment
        facts = {name: about.get(name) for name in ("python", "system", "processor", "commit")}
        facts |= {
            "device": outcome_device_kind(run.flat, about),
            "precision": _precision_of_run(run),
        } | _network_that_was_run(about)
        for name, value in {**facts, **about.get("packages", {})}.items():
            if value:
                found.setdefault(name, {})[str(value)] = None
    rows = [[Cell(name), Cell(", ".join(values))] for name, values in found.items()]
    return ReportTable("Versions, machines, network", ["what", "version"], rows)


def _precision_of_run(run: RecordedRun) -> str:
    """The settings by which a processor computes less exactly; each is off unless said."""
    said = {key.partition(".")[2]: run.flat[key] for key in PRECISION_SETTINGS if key in run.flat}
    return ", ".join(
        f"{name} {'on' if value is True else value or 'off'}" for name, value in said.items()
    )


def _network_that_was_run(about: Mapping[str, Any]) -> dict[str, str]:
    found = about.get("network")
    numbers = found if isinstance(found, Mapping) else {}
    return {
        name: str(numbers[name])
        for name in ("classifier", "parameters", "frozen")
        if name in numbers
    }


def _run_table(runs: Sequence[RecordedRun], folders: Sequence[Path]) -> ReportTable:
    rows = []
    for run in runs:
        names = (shown_path(run.path, folders), run.scenario, run.method, run.repeat)
        rows.append([*map(Cell, names), number_cell(run.test("auc")), number_cell(run.test("gm"))])
    return ReportTable("Every run", ["folder", "scenario", "method", "seed", "AUC", "GM"], rows)


def command_that_was_run(folders: Sequence[Path], options: Mapping[str, object]) -> str:
    """The command, with folders by their last name where they are not below the current one."""
    said = {
        name: _folder_in_command(own) if isinstance(own, Path) else str(own)
        for name, own in options.items()
    }
    parts = [part for name, value in said.items() for part in (f"--{name}", value)]
    return shlex.join(["feddraw", "report", *map(_folder_in_command, folders), *parts])


def _folder_in_command(path: Path) -> str:
    return path.absolute().name if path.is_absolute() or ".." in path.parts else str(path)
